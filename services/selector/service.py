"""A request's way through the selector: texts to pairs of tokens, pairs to KV, KV and questions to the
primary's tokens."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncGenerator, Iterator, Sequence

import numpy as np

from services.selector.auxiliary_kv import AuxiliaryKv
from services.selector.chains import Chains, ChainStore, Placing
from services.selector.config import SelectorConfig
from services.selector.worker_thread import Turn, WorkerThread
from shared.engine.kv.segment import Segment
from shared.engine.kv.source import SegmentSource
from shared.errors import InvalidRequest
from shared.generation.selection import (
    AuxiliaryDescription,
    EncodedChunk,
    SelectedTokens,
    SelectionChunk,
    SelectionOrder,
    SelectionTimings,
)
from shared.metrics import table
from shared.metrics.recorder import MetricReading
from shared.prompt import PromptTokenizer
from shared.request import RequestContext
from shared.scaling import ReplicaPressure
from shared.selection.auxiliary import Auxiliary
from shared.selection.grouping import num_asked
from shared.selection.selector import PairedChunk, Selection, Selector, is_open
from shared.selection.spans import SpanTokenizer
from shared.tracing.names import NUM_CHUNKS, NUM_ENCODED, NUM_LOADED, NUM_QUESTIONS
from shared.tracing.spans import span


class SelectorService:
    """Everything the service does, without a wire. Every method raises ``shared.errors``."""

    def __init__(
        self,
        config: SelectorConfig,
        auxiliary: Auxiliary,
        primary: PromptTokenizer,
        source: SegmentSource,
        store: ChainStore | None = None,
    ) -> None:
        """``store``: knows what the chunks of documents stand behind.

        Raises:
            ModelUnsupported: the primary's tokenizer gives no offsets.
        """
        self._config, self._auxiliary, self._primary = config, auxiliary, primary
        self._selector = Selector(auxiliary, SpanTokenizer(primary, config.primary))
        # A thread each: texts are tokenized while the model computes for somebody else.
        self._tokenizers = WorkerThread("tokenize", config.max_waiting)
        self._pressure = ReplicaPressure()
        self._model = WorkerThread("auxiliary", config.max_waiting, self._pressure.worked)
        self._chains = Chains(self._selector, primary.template.chunk, self._tokenizers, store)
        self.kv = AuxiliaryKv(
            auxiliary.scorer,
            auxiliary.prompts.prefix_ids,
            source,
            self._chains,
            self._model,
            config.resident_bytes,
            config.loader_threads,
            config.resident_floor,
        )

    def resident_chunk_ids(self) -> Sequence[str]:
        return self.kv.resident.keys()

    def forget(self, chunk_ids: Sequence[str]) -> None:
        """Lets go of these chunks' KV; who uses it goes on."""
        self.kv.resident.forget(chunk_ids)

    async def select(self, ctx: RequestContext, order: SelectionOrder) -> tuple[SelectedTokens, ...]:
        """See ``shared.clients.selection.SelectionClient.select``."""
        began = time.monotonic()
        self._check(order.chunks, order.questions, order.ratio)
        async with ctx.until_deadline("selecting tokens"):
            with span(ctx, "pair", {NUM_CHUNKS: len(order.chunks)}) as stage:
                paired = await self._tokenizers.run(
                    stage.ctx, Turn.QUESTION, lambda: [self._pair(chunk) for chunk in order.chunks]
                )
                placing = Placing(self._chains, stage.ctx, Turn.QUESTION)
                needed = zip(order.chunks, paired, strict=True) if is_open(paired, order.ratio) else ()
                placed = [await placing.place(chunk, pair) for chunk, pair in needed]
            with span(ctx, "auxiliary kv", {NUM_CHUNKS: len(placed)}) as stage:
                found = await self.kv.segments(stage.ctx, placed)
                stage.set({NUM_LOADED: found.num_loaded, NUM_ENCODED: found.num_encoded})
            asked = time.monotonic()

            def score() -> tuple[float, list[Selection]]:
                free = time.monotonic()
                how = order.ratio, order.grouping, order.reading
                return free, [
                    self._selector.select(paired, found.segments, question, *how)
                    for question in order.questions
                ]

            with span(ctx, "score", {NUM_QUESTIONS: len(order.questions)}) as stage:
                free, selections = await self._model.run(stage.ctx, Turn.QUESTION, score)
        ended = time.monotonic()
        self._pressure.answered(ended - began)
        timings = SelectionTimings(found.load_s, found.encode_s, free - asked, ended - free, ended - began)
        return tuple(_selected(selection, timings, found.num_isolated) for selection in selections)

    async def encode(
        self, ctx: RequestContext, chunks: Sequence[SelectionChunk]
    ) -> AsyncGenerator[EncodedChunk, None]:
        """One value per chunk, in order, each once its KV is durable."""
        self._check_number("chunks", len(chunks), self._config.max_chunks)
        placing = Placing(self._chains, ctx, Turn.INGESTION)
        near: dict[str, Segment] = {}
        for index, chunk in enumerate(chunks):
            async with ctx.until_deadline("encoding chunks"):
                paired = await self._tokenizers.run(ctx, Turn.INGESTION, functools.partial(self._pair, chunk))
                placed = await placing.place(chunk, paired)
                auxiliary_id, existed = await self.kv.keep(ctx, placed, index, near)
            yield EncodedChunk(index, auxiliary_id, len(placed.chunk.token_ids), existed)

    def describe(self) -> AuxiliaryDescription:
        scorer, prompts = self._auxiliary.scorer, self._auxiliary.prompts
        spec = scorer.spec
        return AuxiliaryDescription(
            model=self._config.model,
            fingerprint=scorer.fingerprint,
            tokenizer_hash=prompts.hash,
            prefix_ids=prompts.prefix_ids,
            question_template=prompts.template.question,
            max_positions=min(spec.max_positions, spec.sliding_window or spec.max_positions),
            dtype=spec.dtype_name,
            kv_bytes_per_token=spec.kv_bytes_per_token,
            device=str(spec.device),
            primary_tokenizer_hash=self._primary.hash,
            chains=scorer.chains,
        )

    def facts(self) -> dict[str, str]:
        """For an operator."""
        described, counts = self.describe(), self.kv.counts
        return {
            "model": described.model,
            "fingerprint": described.fingerprint,
            "dtype": described.dtype,
            "resident_chunks": str(len(self.kv.resident)),
            "resident_bytes": str(self.kv.resident.num_bytes),
            "loaded_chunks": str(counts.loaded),
            "encoded_chunks": str(counts.encoded),
            "written_chunks": str(counts.written),
            "waiting_requests": str(self._model.num_waiting),
        }

    def signals(self) -> dict[str, float]:
        """For autoscaling (``shared.scaling``), since they were asked for last."""
        return self._pressure.signals(self._model.num_waiting)

    def readings(self) -> Iterator[MetricReading]:
        """For metrics, from any thread."""
        counts = self.kv.counts
        yield MetricReading(table.SELECTOR_WAITING, self._model.num_waiting)
        yield MetricReading(table.SELECTOR_RESIDENT_BYTES, self.kv.resident.num_bytes)
        for event in ("resident", "loaded", "encoded", "written"):
            yield MetricReading(table.SELECTOR_CHUNKS, getattr(counts, event), {"event": event})

    async def close(self) -> None:
        """Waits for what is being computed and written."""
        for part in (self._tokenizers, self._model, self.kv):
            await part.close()

    def check_invariants(self) -> None:
        self._tokenizers.check_invariants()
        self._model.check_invariants()
        self._chains.check_invariants()
        self.kv.check_invariants()

    def _pair(self, chunk: SelectionChunk) -> PairedChunk:
        return self._selector.pair(chunk.text, chunk.token_ids)

    def _check(self, chunks: Sequence[SelectionChunk], questions: Sequence[str], ratio: float) -> None:
        num_asked(ratio, 0)
        self._check_number("chunks", len(chunks), self._config.max_chunks)
        self._check_number("questions", len(questions), self._config.max_questions)
        if not questions:
            raise InvalidRequest("questions: there is none")
        for index, question in enumerate(questions):
            if not question.strip():
                raise InvalidRequest(f"questions[{index}]: is empty")

    def _check_number(self, field: str, number: int, most: int) -> None:
        if number > most:
            raise InvalidRequest(f"{field}: {number} are more than the {most} allowed in one request")


def _selected(selection: Selection, timings: SelectionTimings, num_isolated: int) -> SelectedTokens:
    empty = np.zeros(0)
    return SelectedTokens(
        tokens=tuple(np.flatnonzero(np.concatenate([empty, *selection.chosen])).tolist()),
        scores=tuple(np.concatenate([empty, *selection.scores]).tolist()),
        reading=selection.reading,
        num_picked=selection.num_picked,
        num_grouped=selection.num_grouped,
        timings=timings,
        num_isolated=num_isolated,
    )
