"""A retriever, a generator and a KV store that do what they are told, and remember what they were asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from shared.errors import KvquiltError, NotFound, Unavailable
from shared.generation.described import ModelDescription
from shared.generation.modes import ReuseMode
from shared.generation.orders import Auto, GenerationOrder
from shared.generation.told import (
    BranchDoneEvent,
    ChosenEvent,
    DoneEvent,
    FinishReason,
    GenerationEvent,
    ObeyedVerdict,
    SelectedEvent,
    Timings,
    TokenEvent,
    Usage,
)
from shared.kv_types import KvContext, Manifest
from shared.request import RequestContext
from shared.search import Block, Filter, IndexedChunk, SearchHit, SearchMode, SearchResult

FINGERPRINT = "f" * 32


def hit(
    name: str,
    text: str,
    document: str = "",
    fingerprint: str = FINGERPRINT,
    heading: str = "",
    place: int = 0,
    block: Block | None = None,
) -> SearchHit:
    ids = tuple(range(1, 1 + len(text.split())))
    chunk = IndexedChunk(name, text, ids, heading, place=place, block=block)
    return SearchHit(chunk, document or f"{name}.txt", name, fingerprint, 1.0, kv_context=KvContext.DOCUMENT)


@dataclass
class FakeRetriever:
    """``rankings``: query → its hits. ``away_until_s``: of the event loop's time, unavailable before it."""

    rankings: dict[str, list[SearchHit]]
    away_until_s: float = 0.0
    error: KvquiltError | None = None
    asked: list[tuple[str, tuple[str, ...], int, SearchMode, tuple[Filter, ...]]] = field(
        default_factory=list
    )

    async def search(
        self,
        ctx: RequestContext,
        collection: str,
        queries: Sequence[str],
        k: int,
        mode: SearchMode,
        filters: Sequence[Filter],
    ) -> SearchResult:
        self.asked.append((collection, tuple(queries), k, mode, tuple(filters)))
        if asyncio.get_running_loop().time() < self.away_until_s:
            raise Unavailable("retrieval is not available; retry")
        if self.error:
            raise self.error
        return SearchResult(tuple(tuple(self.rankings[q][:k]) for q in queries), SearchMode.DENSE)


@dataclass
class FakeFetcher:
    """``error`` is raised by every call; ``hangs``: no call ends by itself."""

    error: Exception | None = None
    hangs: bool = False
    asked: list[tuple[str, ...]] = field(default_factory=list)

    async def prefetch(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> None:
        self.asked.append(tuple(chunk_ids))
        if self.hangs:
            await asyncio.Event().wait()
        if self.error:
            raise self.error


@dataclass
class FakeManifests:
    """Documents by id."""

    documents: dict[str, Manifest] = field(default_factory=dict)

    async def get_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> Manifest:
        if document_id not in self.documents:
            raise NotFound(f"no document {document_id!r}")
        return self.documents[document_id]


@dataclass
class FakeGenerator:
    """Answers every question with its entry in ``answers``, a token per word, each sample alike.
    ``failures``: before which event of which attempt to raise what. ``reference``: answers of ``full``, if
    others; ``verdict``: that ``auto`` obeys, with ``reordered``. ``suspended``: what it was told of it."""

    answers: dict[str, str]
    failures: list[tuple[int, KvquiltError] | None] = field(default_factory=list)
    fingerprint: str = FINGERPRINT
    asked: list[GenerationOrder] = field(default_factory=list)
    closed: int = 0
    hang_after: int | None = None
    describe_after: asyncio.Event | None = None
    selected: SelectedEvent | None = None
    chosen: ChosenEvent | None = None
    reference: dict[str, str] = field(default_factory=dict)
    verdict: ObeyedVerdict | None = None
    origins: tuple[str, ...] = ()
    suspended: list[tuple[str, str]] = field(default_factory=list)
    max_positions: int = 1024

    async def suspend(self, ctx: RequestContext, verdict: str, reason: str) -> bool:
        self.suspended.append((verdict, reason))
        return True

    async def describe(self, ctx: RequestContext) -> ModelDescription:
        if self.describe_after:
            await self.describe_after.wait()
        return ModelDescription(
            "tiny", self.fingerprint, "", (), "", "", self.max_positions, "float32", 64, "cpu", (0,)
        )

    async def generate(
        self, ctx: RequestContext, order: GenerationOrder
    ) -> AsyncGenerator[GenerationEvent, None]:
        self.asked.append(order)
        failure = self.failures.pop(0) if self.failures else None
        try:
            for position, event in enumerate(self._events(order)):
                if failure and failure[0] == position:
                    raise failure[1]
                if self.hang_after == position:
                    await asyncio.Event().wait()
                yield event
        finally:
            self.closed += 1

    def _events(self, order: GenerationOrder) -> list[GenerationEvent]:
        questions, n = [str(question) for question in order.questions], order.sampling.n
        answers = self.answers | (self.reference if order.reuse.mode is ReuseMode.FULL else {})
        events: list[GenerationEvent] = [self.selected] if self.selected else []
        words = {i: answers[q].split(" ") for i, q in enumerate(questions)}
        for step in range(max(map(len, words.values()))):
            events += [
                TokenEvent(i, sample, step + 5, (" " if step else "") + ws[step], -0.5, ((step + 5, -0.5),))
                for i, ws in words.items()
                for sample in range(n)
                if step < len(ws)
            ]
        events += [
            BranchDoneEvent(i, sample, FinishReason.STOP, "", len(ws))
            for i, ws in words.items()
            for sample in range(n)
        ]
        events += [self.chosen] if self.chosen else []
        num_tokens = n * sum(map(len, words.values()))
        usage = Usage(100, 90, 10, num_tokens, chunk_origins=self.origins)
        if order.reuse.mode is Auto.AUTO and self.verdict and self.verdict.id not in dict(self.suspended):
            usage = replace(usage, reuse=ReuseMode.REORDERED, verdict=self.verdict)
        return [*events, DoneEvent(usage, Timings(queue_s=1.0, prefill_s=5.0, engine_ttft_s=4.0))]
