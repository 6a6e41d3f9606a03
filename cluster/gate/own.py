"""Evaluates a model by an operator's own questions about documents that are ingested in a running system:
over the chunks that it retrieves, made again here as ingestion would make them, for any ``kv_context``."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import takewhile
from pathlib import Path

from rich.console import Console

from cluster.gate.answering import AskedQuestion, EngineAnswers, EngineReply, Models
from cluster.gate.asking import Asking, Way
from cluster.gate.decision import DEFAULT_ALPHA, Context, decide
from cluster.gate.evaluated import OWN, Evaluated, made_with
from cluster.gate.evaluation import num_processes
from cluster.gate.ingested import Ingested, Ingesting
from cluster.gate.ledger import GradedAnswer, Ledger
from cluster.gate.modes import Arm, Comparison
from cluster.gate.retrieved import OwnSubject, RetrievedQuestions
from cluster.gate.served import say_left_out, served_plan
from services.ingestion.recipe import Recipe, context_tokens
from shared.errors import InvalidRequest
from shared.identity import adapter_identity
from shared.kv_types import KvContext, Manifest
from shared.measuring.reference import Place, within_reach

MAX_TOKENS = 64
_DOCUMENTS = 256  # kept as they were cut
_AROUND = 8  # tokens of a prompt beside what is counted
OwnWanted = Sequence[tuple[OwnSubject, Sequence[Way]]]


@dataclass(frozen=True, slots=True)
class OwnDocument:
    """A document as it would be ingested now. ``places``: of each stored chunk those that hold its text now;
    ``blocks``: of each chunk now the chunks of its block, in order."""

    manifest: Manifest
    places: tuple[tuple[int, ...], ...]
    blocks: tuple[tuple[int, ...], ...]


class OwnBench:
    """``documents``: as they are stored, by id."""

    def __init__(self, models: Models, plan: Comparison, documents: Mapping[str, Manifest]) -> None:
        """Raises as ``EngineAnswers``."""
        self._answering = EngineAnswers(models, plan, MAX_TOKENS)
        self.prompts, model = self._answering.prompts, self._answering.model
        self._documents = documents
        self._ingesting = Ingesting(models.ingestion, self.prompts, model.spec.vocab_size, model.fingerprint)
        config = models.ingestion
        self._recipes = [
            Recipe(
                self.prompts,
                config.chunk_tokens,
                context=context,
                context_tokens=context_tokens(
                    replace(config, kv_context=context), len(self.prompts.prefix_ids)
                ),
            )
            for context in (config.kv_context, KvContext.DOCUMENT)
        ]
        self._most = min(model.spec.max_positions, model.spec.sliding_window or model.spec.max_positions)
        self._document = lru_cache(_DOCUMENTS)(self._read)

    @property
    def fingerprints(self) -> Mapping[str, str]:
        return self._answering.fingerprints

    def close(self) -> None:
        self._answering.close()

    def num_tokens(self, text: str) -> int:
        return len(self.prompts.encode_chunk(text))

    def ask(self, wanted: OwnWanted) -> list[list[GradedAnswer]]:
        """The answer to each subject in each way, in order.

        Raises:
            KvquiltError: a request failed; retrieved chunks are longer than the model reads.
        """
        ways = [
            (subject, kind, arm, question)
            for subject, of_it in wanted
            for question in [self.asked(subject)]
            for kind, arm in of_it
        ]
        replies = self._answering.ask([(question, arm) for _, _, arm, question in ways])
        return [
            [self._judged(subject, kind, arm, question, reply)]
            for (subject, kind, arm, question), reply in zip(ways, replies, strict=True)
        ]

    def _judged(
        self, subject: OwnSubject, kind: str, arm: Arm, asked: AskedQuestion, reply: EngineReply
    ) -> GradedAnswer:
        return GradedAnswer(
            kind,
            arm.label,
            subject.number,
            0,
            subject.question.is_right(reply.text),
            reply.text,
            asked.num_tokens,
            reply.num_selected if arm.mode.row.stored else asked.num_tokens,
            kl=reply.kl,
            alike=reply.alike,
        )

    def asked(self, subject: OwnSubject) -> AskedQuestion:
        """The question over its chunks, as ingestion would make them now."""
        documents = {i: self._document(i) for i, _ in subject.hits}
        retrieved = [(i, now) for i, number in subject.hits for now in documents[i].places[number]]
        whole = [
            (i, now)
            for i, document in documents.items()
            for now in sorted({n for doc, at in retrieved if doc == i for n in document.blocks[at]})
        ]
        question = subject.question.question
        blocks = self._fitting(documents, retrieved, whole, question, subject.number)
        known = list(dict.fromkeys([*retrieved, *blocks]))
        numbers = {place: number for number, place in enumerate(known)}
        return AskedQuestion(
            question,
            self._ingested(documents, known),
            tuple(dict.fromkeys(numbers[place] for place in retrieved)),
            tuple(numbers[place] for place in blocks),
            subject.number,
        )

    def _ingested(self, documents: Mapping[str, OwnDocument], known: Sequence[tuple[str, int]]) -> Ingested:
        """The chunks in the order of ``known``."""
        parts = [self._ingesting.chunks_of(documents[i].manifest, [at]) for i, at in known]
        return Ingested(
            tuple(part.chunks[0] for part in parts),
            tuple(dict.fromkeys(link for part in parts for link in part.links)),
            tuple(part.texts[0] for part in parts),
            tuple(part.contexts[0] for part in parts),
        )

    def _fitting(
        self,
        documents: Mapping[str, OwnDocument],
        retrieved: Sequence[tuple[str, int]],
        whole: Sequence[tuple[str, int]],
        question: str,
        number: int,
    ) -> list[tuple[str, int]]:
        """Of the whole blocks what the model can read at once, in order: the retrieved chunks, then those
        nearest to them."""

        def num_tokens(place: Place) -> int:
            document_id, at = place
            return len(documents[document_id].manifest.chunks[at].token_ids)

        around = (
            len(self.prompts.prefix_ids) + len(self.prompts.encode_question(question)) + MAX_TOKENS + _AROUND
        )
        room = self._most - around - sum(map(num_tokens, dict.fromkeys(retrieved)))
        if room < 0:
            raise InvalidRequest(
                f"--questions: the chunks that are retrieved for question {number + 1} are longer than the "
                "model reads; ask for fewer by -k"
            )
        return within_reach(whole, retrieved, num_tokens, room)

    def _read(self, document_id: str) -> OwnDocument:
        stored = self._documents[document_id]
        served, in_blocks = (recipe.recut(stored) for recipe in self._recipes)
        manifest = self._ingesting.named(served.title, served.chunks)
        wide = self._ingesting.named(in_blocks.title, in_blocks.chunks)
        places = tuple(
            tuple(
                i
                for i, now in enumerate(served.chunks)
                if now.start < chunk.char_end and now.end > chunk.char_start
            )
            for chunk in stored.chunks
        )
        starts = sorted({wide.chunks[wide.block_start(i)].char_start for i in range(len(wide.chunks))})
        blocks = [bisect_right(starts, now.start) for now in served.chunks]
        members: dict[int, list[int]] = {}
        for i, block in enumerate(blocks):
            members.setdefault(block, []).append(i)
        return OwnDocument(manifest, places, tuple(tuple(members[block]) for block in blocks))


@dataclass(frozen=True, slots=True)
class OwnEvaluation:
    """See ``Evaluation``. ``tolerance`` None: all questions are asked."""

    models: Models
    plan: Comparison
    retrieved: RetrievedQuestions
    threads: int = 1
    processes: int = 0
    minutes: float | None = None
    tolerance: float | None = None
    alpha: float = DEFAULT_ALPHA

    def run(self, kept: Path | None, console: Console) -> Evaluated:
        """Raises as ``Evaluation.run``."""
        plan, left_out = served_plan(self.plan, self.models)
        say_left_out(left_out, console)
        build = partial(OwnBench, self.models, plan, self.retrieved.documents)
        bench = build()
        subjects = self.retrieved.subjects
        try:
            settings = self._settings(plan)
            ledger = Ledger(kept, {**settings, **bench.fingerprints})

            def order() -> list[Context]:
                done = takewhile(lambda one: not asking.missing(ledger, one), subjects)
                return [(False, one.number) for one in done]

            def enough() -> bool:
                return (
                    self.tolerance is not None
                    and decide(ledger.answers, plan, order(), self.tolerance, self.alpha).decided
                )

            processes = num_processes(self.processes, self.threads, self.models)
            asking = Asking(build, partial(_ways, plan), processes, self.threads, self.minutes, enough)
            asking.run(bench, ledger, subjects, console)
            served = made_with(self.models, plan, bench.prompts, bench.fingerprints)
            return Evaluated(
                ledger.answers, order(), plan, served, settings, questions=OWN, left_out=left_out
            )
        finally:
            bench.close()

    def _settings(self, plan: Comparison) -> dict[str, object]:
        ingestion = self.models.ingestion
        return {
            "questions": self.retrieved.digest,
            "kv_context": ingestion.kv_context.value,
            "kv_context_tokens": ingestion.kv_context_tokens,
            "chunk_tokens": ingestion.chunk_tokens,
            "prompt": dataclasses.asdict(ingestion.prompt),
            "dtype": self.models.dtype,
            "encoding": self.models.encoding,
            "stop": list(self.models.stop),
            "adapter": adapter_identity(self.models.adapter) if self.models.adapter else "",
            "controls_as": plan.controls_as,
            **({"device": self.models.device} if self.models.on_gpu else {}),
        }


def _ways(plan: Comparison, subject: OwnSubject) -> list[Way]:
    return [(subject.question.kind, arm) for arm in plan.arms(subject.question.kind)]
