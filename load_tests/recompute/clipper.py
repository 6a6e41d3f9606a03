"""Does the auxiliary model's part: which tokens of a context to recompute, and how long it takes to know."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerFast

from load_tests.recompute.text import Speech
from shared.engine.kv.chunk_reads import FirstLayer, Loaded
from shared.engine.kv.loader import ChunkLoad, Loader
from shared.engine.kv.segment import Segment
from shared.engine.kv.source import ComputedChunk, SegmentSource
from shared.engine.model.model import LoadedModel
from shared.generation.selection import Grouping, Reading
from shared.identity import chunk_identity
from shared.prompt import PromptTokenizer
from shared.prompt_template import PromptTemplate
from shared.request import DEFAULT_TENANT
from shared.selection.auxiliary import Auxiliary
from shared.selection.scoring import EngineScorer, Scores
from shared.selection.selector import Selector, is_open
from shared.selection.spans import SpanTokenizer

_LOADER_THREADS = 2


@dataclass(frozen=True, slots=True)
class Selected:
    """``tokens`` of the primary to recompute, counted from 0 over all chunks. Seconds: both tokenizers read
    the chunks; the auxiliary's KV of them comes from its store; it reads the question; windows are ranked and
    mapped."""

    tokens: tuple[int, ...]
    pair_s: float
    load_s: float
    score_s: float
    group_s: float

    @property
    def total_s(self) -> float:
        return self.pair_s + self.load_s + self.score_s + self.group_s


class TimedScorer(EngineScorer):
    """Knows how long its last scores took."""

    seconds = 0.0

    def score(
        self, chunks: Sequence[Segment], question_ids: Sequence[int], reading: Reading = Reading.STITCHED
    ) -> Scores:
        started = time.perf_counter()
        scores = super().score(chunks, question_ids, reading)
        self.seconds = time.perf_counter() - started
        return scores


class Clipper:
    """One question on one context. The auxiliary's KV of the chunks is stored in ``source`` when this is
    made."""

    def __init__(
        self, model: LoadedModel, source: SegmentSource, speech: Speech, texts: Sequence[str], question: str
    ) -> None:
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=speech.auxiliary)
        prompts = PromptTokenizer(tokenizer, PromptTemplate())
        self._scorer = TimedScorer(model, prompts.prefix_ids)
        auxiliary = Auxiliary(self._scorer, SpanTokenizer(speech.auxiliary, "the auxiliary"), prompts)
        self._selector = Selector(auxiliary, SpanTokenizer(speech.primary, "the primary"))
        self._texts, self._question = texts, question
        self._loader = Loader(source, model.spec, _LOADER_THREADS)
        self.chunks = [self._selector.pair(text) for text in texts]
        self._lens: dict[str, int] = {}
        for chunk, segment in zip(self.chunks, self._selector.encode(self.chunks), strict=True):
            ids, prefix = chunk.auxiliary.token_ids, prompts.prefix_ids
            chunk_id = chunk_identity(DEFAULT_TENANT, model.fingerprint, prefix, ids)
            self._lens[chunk_id] = len(chunk.auxiliary)
            source.save(ComputedChunk(chunk_id, prefix, ids, segment, replace=False, write_back=False))
        self.question_len = len(prompts.encode_question(question))
        self.prefix_len = len(prompts.prefix_ids)

    def clip(self, ratio: float, grouping: Grouping, reading: Reading) -> Selected:
        """As a request has it done. Ratios that leave nothing to choose ask neither the store nor the
        model."""
        started, self._scorer.seconds = time.perf_counter(), 0.0
        chunks = [self._selector.pair(text) for text in self._texts]
        paired = time.perf_counter()
        segments = self._load() if is_open(chunks, ratio) else []
        loaded = time.perf_counter()
        selection = self._selector.select(chunks, segments, self._question, ratio, grouping, reading)
        tokens = tuple(np.flatnonzero(np.concatenate(selection.chosen)).tolist())
        select_s = time.perf_counter() - loaded
        return Selected(
            tokens, paired - started, loaded - paired, self._scorer.seconds, select_s - self._scorer.seconds
        )

    def close(self) -> None:
        self._loader.close()

    def _load(self) -> list[Segment]:
        """From the store, verified, every time.

        Raises:
            LookupError: a chunk is not there any more.
        """
        events: queue.SimpleQueue[FirstLayer | Loaded] = queue.SimpleQueue()
        self._loader.load(ChunkLoad(self._lens), events.put)
        found: dict[str, Segment] = {}
        while len(found) < len(self._lens):
            event = events.get()
            if isinstance(event, Loaded):
                if event.segment is None:
                    raise LookupError(
                        f"the auxiliary's KV of chunk {event.key} is lost; the log has the reason"
                    )
                found[event.key] = event.segment
        return [found[chunk_id] for chunk_id in self._lens]
