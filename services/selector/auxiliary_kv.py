"""The auxiliary's KV of chunks: resident, else stored, else computed and written back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar

from services.selector.worker_thread import Turn, WorkerThread
from shared.engine.kv.chunk_reads import Loaded
from shared.engine.kv.loader import Checked, ComputedChunk, Loader, Saved
from shared.engine.kv.segment import Segment
from shared.engine.kv.source import SegmentSource
from shared.errors import ContextTooLong
from shared.identity import chunk_identity
from shared.locks import Locks
from shared.request import RequestContext
from shared.selection.scoring import Scorer
from shared.threads import call_on

log = logging.getLogger(__name__)

EventT = TypeVar("EventT")
Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """``segments`` of the chunks asked for, in their order."""

    segments: list[Segment]
    load_s: float
    encode_s: float


@dataclass(slots=True)
class Counts:
    """Chunks, since the start."""

    resident: int = 0
    loaded: int = 0
    encoded: int = 0
    written: int = 0


class Resident:
    """Segments in memory, least recently used first to go. Who uses one keeps it alive meanwhile."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.num_bytes = 0
        self._segments: dict[str, Segment] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def get(self, key: str) -> Segment | None:
        segment = self._segments.pop(key, None)
        if segment is not None:
            self._segments[key] = segment  # most recently used last
        return segment

    def put(self, key: str, segment: Segment) -> None:
        if self.get(key) is None:
            self._segments[key] = segment
            self.num_bytes += segment.num_bytes
        while self.num_bytes > self.capacity_bytes:
            oldest = next(iter(self._segments))
            self.num_bytes -= self._segments.pop(oldest).num_bytes

    def check_invariants(self) -> None:
        assert self.num_bytes == sum(s.num_bytes for s in self._segments.values()) <= self.capacity_bytes
        assert all(segment.whole for segment in self._segments.values())


class AuxiliaryKv:
    """Belongs to one event loop. A chunk is loaded and computed once, however many ask for it at the same
    time.

    A chunk of which the auxiliary's tokenizer makes no token has no KV: its identity is empty, and nothing is
    stored.
    """

    def __init__(
        self,
        scorer: Scorer,
        prefix_ids: Ids,
        source: SegmentSource,
        model_thread: WorkerThread,
        resident_bytes: int,
        loader_threads: int,
    ) -> None:
        self._scorer, self._prefix_ids, self._thread = scorer, prefix_ids, model_thread
        self._loader = Loader(source, scorer.spec, loader_threads)
        self._locks = Locks()
        self._write_back_bytes = 0  # of write-backs that are not durable yet
        self.resident = Resident(resident_bytes)
        self.counts = Counts()

    def identity(self, tenant: str, token_ids: Ids) -> str:
        """``token_ids``: the auxiliary's."""
        return (
            chunk_identity(tenant, self._scorer.fingerprint, self._prefix_ids, token_ids) if token_ids else ""
        )

    async def segments(self, ctx: RequestContext, chunks: Sequence[Ids]) -> Found:
        """
        Raises:
            ContextTooLong: a chunk is longer than the auxiliary model can read.
            DeadlineExceeded, Overloaded: see ``WorkerThread``.
        """
        keys = [self.identity(ctx.tenant, ids) for ids in chunks]
        ids_of = {key: ids for key, ids in zip(keys, chunks, strict=True) if key}
        found = self._at_hand(ids_of)
        self.counts.resident += len(found)
        load_s = encode_s = 0.0
        if missing := sorted(ids_of.keys() - found):
            async with AsyncExitStack() as held:
                for (
                    key
                ) in missing:  # in order, so that two who want the same chunks never wait for each other
                    await held.enter_async_context(self._locks.hold(key))
                found |= self._at_hand(missing)
                began = time.monotonic()
                loaded = await self._load({key: len(ids_of[key]) for key in missing if key not in found})
                loaded_s = time.monotonic()
                load_s = loaded_s - began
                found |= {one.key: one.segment for one in loaded if one.segment is not None}
                for one in loaded:
                    if one.segment is None:
                        index = keys.index(one.key)
                        found[one.key] = await self._encode(ctx, Turn.QUESTION, ids_of[one.key], index)
                        encode_s = time.monotonic() - loaded_s
                        self._write_back(one, ids_of[one.key], found[one.key])
                    self.resident.put(one.key, found[one.key])
        return Found([found[key] if key else Segment(self._scorer.spec, 0) for key in keys], load_s, encode_s)

    async def keep(self, ctx: RequestContext, token_ids: Ids, index: int) -> bool:
        """Makes the KV of a chunk durable; returns whether it was so before. Memory is left to those who ask
        questions.
        ``index``: what errors call the chunk.

        Raises:
            ContextTooLong: the chunk is longer than the auxiliary model can read.
            StorageFull, Unavailable: it cannot be stored.
            DeadlineExceeded, Overloaded: see ``WorkerThread``.
        """
        key = self.identity(ctx.tenant, token_ids)
        if not key:
            return True
        async with self._locks.hold(key):
            (checked,) = await _told(
                lambda tell: self._loader.verify({key: len(token_ids)}, tell), 1, Checked
            )
            if checked.intact:
                return True
            segment = self.resident.get(key) or await self._encode(ctx, Turn.INGESTION, token_ids, index)
            ctx.check_deadline("encoding chunks")
            (saved,) = await _told(
                lambda tell: self._loader.save(
                    ComputedChunk(
                        key, self._prefix_ids, token_ids, segment, replace=checked.broken, write_back=False
                    ),
                    tell,
                ),
                1,
                Saved,
            )
            if saved.error is not None:
                raise saved.error
            self.counts.written += 1
        return False

    async def close(self) -> None:
        """Waits for what is being written."""
        await asyncio.to_thread(self._loader.close)

    def check_invariants(self) -> None:
        self.resident.check_invariants()
        assert self._write_back_bytes >= 0

    def _at_hand(self, keys: Iterable[str]) -> dict[str, Segment]:
        return {key: segment for key in keys if (segment := self.resident.get(key)) is not None}

    async def _load(self, chunk_lens: dict[str, int]) -> list[Loaded]:
        """One answer per chunk."""
        if not chunk_lens:
            return []
        loaded: list[Loaded] = await _told(
            lambda tell: self._loader.load(chunk_lens, tell), len(chunk_lens), Loaded
        )
        self.counts.loaded += sum(one.segment is not None for one in loaded)
        return loaded

    async def _encode(self, ctx: RequestContext, turn: Turn, token_ids: Ids, index: int) -> Segment:
        """A chunk at a time: others get at the model in between."""
        try:
            (segment,) = await self._thread.run(ctx, turn, lambda: self._scorer.encode([token_ids]))
        except ContextTooLong as error:
            raise ContextTooLong(error.detail.replace("chunks[0]", f"chunks[{index}]")) from None
        self.counts.encoded += 1
        return segment

    def _write_back(self, lost: Loaded, token_ids: Ids, segment: Segment) -> None:
        """A store that takes nothing must not fill the memory with what waits for it: that is computed again
        some time."""
        if self._write_back_bytes + segment.num_bytes > self.resident.capacity_bytes:
            log.warning(
                "auxiliary KV of chunk %s is not written back: too much waits to be written already", lost.key
            )
            return
        self._write_back_bytes += segment.num_bytes
        loop = asyncio.get_running_loop()

        def written(saved: Saved) -> None:
            self._write_back_bytes -= segment.num_bytes
            self.counts.written += saved.error is None

        self._loader.save(
            ComputedChunk(
                lost.key, self._prefix_ids, token_ids, segment, replace=lost.broken, write_back=True
            ),
            lambda saved: call_on(loop, written, saved),
        )


async def _told(
    start: Callable[[Callable[[object], None]], None], num_events: int, kind: type[EventT]
) -> list[EventT]:
    """The events of ``kind`` that a loader's threads tell."""
    loop, events = asyncio.get_running_loop(), asyncio.Queue[EventT]()

    def tell(event: object) -> None:
        if isinstance(event, kind):
            call_on(loop, events.put_nowait, event)

    start(tell)
    return [await events.get() for _ in range(num_events)]
