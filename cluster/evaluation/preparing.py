"""Prepares cases for asking: cuts them into chunks, gives these what they stand behind, and finds where the
references stand in them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

import numpy as np

from cluster.evaluation.arms import FULL, EvalArm
from cluster.evaluation.cases import EvalCase, EvalTask
from cluster.evaluation.cutting import CaseCutter, CutCase
from cluster.gate.answering import Models
from cluster.gate.ingested import Ingested, Ingesting
from cluster.word_search import found_by_words
from shared.errors import ConfigError, InvalidRequest
from shared.kv_types import KvContext
from shared.prompt import PromptTokenizer
from shared.selection.spans import SpanTokenizer

_TEXTS = 4096  # kept, with where their tokens are


@dataclass(frozen=True, slots=True)
class PreparedCase:
    """A case as it is ingested, for KV of every kind. ``retrieved``: numbers of the chunks that are asked
    over, in their order in the prompt; ``whole``: of those that `full` reads as the reference, the same or,
    where only some are retrieved, their whole documents. ``value_tokens``: of the retrieved chunks, counted
    over all of them, in which the references stand."""

    case: EvalCase
    cut: CutCase
    ingested: Mapping[KvContext, Ingested]
    retrieved: tuple[int, ...]
    whole: tuple[int, ...]
    question_ids: tuple[int, ...]
    value_tokens: frozenset[int]

    def ingested_as(self, arm: EvalArm) -> Ingested:
        return self.ingested[arm.context or next(iter(self.ingested))]

    def placed(self, arm: EvalArm) -> tuple[int, ...]:
        """Numbers of the chunks in front of the question."""
        if arm.mode is None:
            return ()
        return self.whole if arm == FULL else self.retrieved

    def num_tokens(self, arm: EvalArm) -> int:
        chunks = self.ingested_as(arm).chunks
        return sum(len(chunks[i].token_ids) for i in self.placed(arm))


class CasePreparer:
    """``contexts``: kinds of stored KV. ``positions``: of a prompt and its answer. ``vocab_size``,
    ``fingerprint``: of the model. ``retrieve``: so many chunks at most are asked over; 0: all that fit.

    Raises:
        ConfigError: ``models`` do not fit together.
    """

    def __init__(
        self,
        models: Models,
        prompts: PromptTokenizer,
        contexts: Sequence[KvContext],
        positions: int,
        vocab_size: int,
        fingerprint: str,
        retrieve: int = 0,
    ) -> None:
        self._prompts, self._retrieve = prompts, retrieve
        self.cutter = CaseCutter(prompts, models.ingestion.chunk_tokens, positions)
        self._ingesting = {
            context: Ingesting(
                replace(models.ingestion, kv_context=context), prompts, vocab_size, fingerprint
            )
            for context in contexts
        }
        self.spans = SpanTokenizer(prompts, models.primary)
        self._spans_of = lru_cache(_TEXTS)(self.spans.tokenize_chunk)

    def prepare(self, task: EvalTask, case: EvalCase) -> PreparedCase:
        """
        Raises:
            ContextTooLong: there is no room for a single chunk.
        """
        cut = self.cutter.cut(case.documents, case.question, task.max_tokens)
        ingested = {context: it.ingest(cut.sources) for context, it in self._ingesting.items()}
        texts = next(iter(ingested.values())).texts
        question_ids = self._prompts.encode_question(case.question)
        retrieved = self._retrieved(case, cut)
        found_in = {cut.document_of[i] for i in retrieved}
        whole = tuple(i for i in cut.placed if cut.document_of[i] in found_in)
        values = self._value_tokens(case, cut, retrieved, texts)
        return PreparedCase(case, cut, ingested, retrieved, whole, question_ids, values)

    def _retrieved(self, case: EvalCase, cut: CutCase) -> tuple[int, ...]:
        """By the question's words, in an order that says nothing."""
        if not self._retrieve:
            return cut.placed
        found = found_by_words([case.question], [cut.texts[i] for i in cut.placed], self._retrieve)
        random.Random(f"{case.name} retrieved").shuffle(found)
        return tuple(cut.placed[i] for i in found)

    def _value_tokens(
        self, case: EvalCase, cut: CutCase, placed: Sequence[int], texts: Sequence[str]
    ) -> frozenset[int]:
        """Of the chunks that hold the evidence."""
        found: set[int] = set()
        spans = [self._spans_of(texts[i]) for i in placed]
        starts = accumulate((len(one) for one in spans), initial=0)
        for i, start, one in zip(placed, starts, spans, strict=False):
            if case.evidence and cut.document_of[i] not in case.evidence:
                continue
            for form in (form for forms in case.references for form in forms if form.strip()):
                at = texts[i].lower().find(form.lower())
                if at >= 0:
                    inside_T = (one.starts < at + len(form)) & (one.ends > at)
                    found.update((np.flatnonzero(inside_T) + start).tolist())
        return frozenset(found)


def prompts_of(models: Models) -> PromptTokenizer:
    """
    Raises:
        ConfigError: the model has no tokenizer, or it cannot be used.
    """
    prompts = PromptTokenizer.of_model(models.primary, models.ingestion.prompt)
    if prompts is None:
        raise ConfigError(f"--model: {models.primary} has no tokenizer; its questions are text")
    return prompts


def positions_of(wanted: int, there: int) -> int:
    """
    Raises:
        InvalidRequest: the model has fewer.
    """
    if wanted > there:
        raise InvalidRequest(
            f"--length: {wanted} tokens exceed the model's {there} positions; give {there} at most, or "
            "--model another one"
        )
    return wanted or there
