"""The auxiliary's KV of chunks: resident, else stored, else computed and written back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from services.selector.chains import Chains, Placed
from services.selector.resident import Resident
from services.selector.worker_thread import Turn, WorkerThread
from shared.engine.kv.chunk_reads import Loaded
from shared.engine.kv.loader import Checked, ChunkLoad, Loader, Saved
from shared.engine.kv.segment import Segment
from shared.engine.kv.source import ComputedChunk, SegmentSource
from shared.errors import ContextTooLong
from shared.generation.asked import Chunk
from shared.locks import Locks
from shared.request import RequestContext
from shared.selection.scoring import Scorer
from shared.threads import call_on, events_of
from shared.tracing.spans import is_traced

log = logging.getLogger(__name__)

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """``segments`` of the chunks asked for, in their order. ``num_isolated``: those that should stand behind
    others, of which nothing is known; ``num_loaded``, ``num_encoded``: those that were stored, or
    computed."""

    segments: list[Segment]
    load_s: float
    encode_s: float
    num_isolated: int = 0
    num_loaded: int = 0
    num_encoded: int = 0


@dataclass(slots=True)
class Counts:
    """Chunks, since the start."""

    resident: int = 0
    loaded: int = 0
    encoded: int = 0
    written: int = 0


class AuxiliaryKv:
    """Belongs to one event loop. A chunk is loaded and computed once, however many ask for it at the same
    time; so are the chunks of one chain, which are locked by its first link.

    A chunk of which the auxiliary's tokenizer makes no token has no KV: its identity is empty, and nothing is
    stored.
    """

    def __init__(
        self,
        scorer: Scorer,
        prefix_ids: Ids,
        source: SegmentSource,
        chains: Chains,
        model_thread: WorkerThread,
        resident_bytes: int,
        loader_threads: int,
        resident_floor: float = 0.0,
    ) -> None:
        self._scorer, self._prefix_ids, self._thread = scorer, prefix_ids, model_thread
        self._chains = chains
        self._loader = Loader(source, scorer.spec, loader_threads)
        self._locks = Locks()
        self._write_back_bytes = 0  # of write-backs that are not durable yet
        self.resident = Resident(resident_bytes, resident_floor)
        self.counts = Counts()

    async def segments(self, ctx: RequestContext, placed: Sequence[Placed]) -> Found:
        """
        Raises:
            ContextTooLong: a chunk is longer than the auxiliary model can read.
            DeadlineExceeded, Overloaded: see ``WorkerThread``.
        """
        wanted = {one.chunk.chunk_id: one for one in placed if one.chunk.chunk_id}
        found, alone = self._at_hand(wanted), dict[str, Segment]()
        self.counts.resident += len(found)
        load_s = encode_s = 0.0
        num_loaded = num_encoded = 0
        if missing := sorted(wanted.keys() - found):
            async with AsyncExitStack() as held:
                # in order, so that two who want the same chunks never wait for each other
                for first_id in sorted({wanted[key].first_id for key in missing}):
                    await held.enter_async_context(self._locks.hold(first_id))
                found |= self._at_hand(missing)
                began = time.monotonic()
                loaded = await self._load(
                    ctx.tenant,
                    {key: len(wanted[key].chunk.token_ids) for key in missing if key not in found},
                    ctx.traceparent if is_traced(ctx) else "",
                )
                num_loaded = sum(one.segment is not None for one in loaded)
                num_encoded = len(loaded) - num_loaded
                loaded_s = time.monotonic()
                load_s = loaded_s - began
                for one in loaded:
                    if one.segment is not None:
                        found[one.key] = one.segment
                        self.resident.put(one.key, one.segment, ctx.tenant)
                for one in loaded:
                    if one.segment is None:
                        index = [p.chunk.chunk_id for p in placed].index(one.key)
                        if not await self._compute(ctx, one, wanted[one.key], index, found):
                            alone[one.key] = await self._alone(ctx, wanted[one.key], index)
                        encode_s = time.monotonic() - loaded_s
        found |= alone
        num_isolated = sum(one.isolated or one.chunk.chunk_id in alone for one in placed)
        nothing = Segment(self._scorer.spec, 0)
        segments = [found[one.chunk.chunk_id] if one.chunk.chunk_id else nothing for one in placed]
        return Found(segments, load_s, encode_s, num_isolated, num_loaded, num_encoded)

    async def keep(
        self, ctx: RequestContext, placed: Placed, index: int, near: dict[str, Segment]
    ) -> tuple[str, bool]:
        """Makes the KV of a chunk durable; returns its identity, and whether it was so before. Memory is left
        to those who ask questions, but for ``near``, what this caller's next chunk may stand behind.
        ``index``: what errors call the chunk.

        Raises:
            ContextTooLong: the chunk is longer than the auxiliary model can read.
            StorageFull, Unavailable: it cannot be stored.
            DeadlineExceeded, Overloaded: see ``WorkerThread``.
        """
        if not placed.chunk.chunk_id:
            return "", True
        async with self._locks.hold(placed.first_id):
            chain = await self._chains.of(ctx, Turn.INGESTION, placed)
            chunk = (placed if chain is not None else placed.alone).chunk
            for key in near.keys() - {link.chunk_id for link in chain or ()}:
                del near[key]
            checked = await self._verified(ctx.tenant, chunk)
            if checked.intact:
                return chunk.chunk_id, True
            segment = self.resident.get(chunk.chunk_id)
            if segment is None:
                behind = await self._segments_of(ctx, Turn.INGESTION, chain or (), index, near)
                segment = await self._encode(ctx, Turn.INGESTION, chunk.token_ids, behind, index)
            near[chunk.chunk_id] = segment
            ctx.check_deadline("encoding chunks")
            (saved,) = await events_of(
                lambda tell: self._loader.save(
                    self._computed(ctx, chunk, segment, replace=checked.broken), tell
                ),
                1,
                Saved,
            )
            if saved.error is not None:
                raise saved.error
            self.counts.written += 1
        return chunk.chunk_id, False

    async def close(self) -> None:
        """Waits for what is being written."""
        await asyncio.to_thread(self._loader.close)

    def check_invariants(self) -> None:
        self.resident.check_invariants()
        assert self._write_back_bytes >= 0

    def _at_hand(self, keys: Iterable[str]) -> dict[str, Segment]:
        return {key: segment for key in keys if (segment := self.resident.get(key)) is not None}

    async def _load(self, tenant: str, chunk_lens: dict[str, int], traceparent: str = "") -> list[Loaded]:
        """One answer per chunk."""
        if not chunk_lens:
            return []
        loaded: list[Loaded] = await events_of(
            lambda tell: self._loader.load(
                ChunkLoad(chunk_lens), tell, traceparent=traceparent, tenant=tenant
            ),
            len(chunk_lens),
            Loaded,
        )
        self.counts.loaded += sum(one.segment is not None for one in loaded)
        return loaded

    async def _verified(self, tenant: str, chunk: Chunk) -> Checked:
        lens = {chunk.chunk_id: len(chunk.token_ids)}
        (checked,) = await events_of(lambda tell: self._loader.verify(lens, tell, tenant=tenant), 1, Checked)
        return checked

    async def _compute(
        self, ctx: RequestContext, lost: Loaded, placed: Placed, index: int, found: dict[str, Segment]
    ) -> bool:
        """Adds the KV of a chunk that cannot be loaded to ``found``, with that of what it stands behind;
        False: that is not known any more."""
        chain = await self._chains.of(ctx, Turn.QUESTION, placed)
        if chain is None:
            return False
        token_ids = placed.chunk.token_ids
        if lost.key not in found:  # another chunk of the request may stand behind it
            behind = await self._segments_of(ctx, Turn.QUESTION, chain, index, found)
            found[lost.key] = await self._encode(ctx, Turn.QUESTION, token_ids, behind, index)
        self._write_back(ctx, lost, placed.chunk, found[lost.key])
        for key in (*(link.chunk_id for link in chain), lost.key):
            if key in found:
                self.resident.put(key, found[key], ctx.tenant)
        return True

    async def _alone(self, ctx: RequestContext, placed: Placed, index: int) -> Segment:
        """KV of a chunk without what is in front of it, which is kept under that identity."""
        chunk = placed.alone.chunk
        segment = self.resident.get(chunk.chunk_id)
        if segment is None:
            (loaded,) = await self._load(ctx.tenant, {chunk.chunk_id: len(chunk.token_ids)})
            segment = loaded.segment
            if segment is None:
                segment = await self._encode(ctx, Turn.QUESTION, chunk.token_ids, (), index)
                self._write_back(ctx, loaded, chunk, segment)
            self.resident.put(chunk.chunk_id, segment, ctx.tenant)
        return segment

    async def _segments_of(
        self,
        ctx: RequestContext,
        turn: Turn,
        chain: Sequence[Chunk],
        index: int,
        near: dict[str, Segment],
    ) -> list[Segment]:
        """KV of a chain: at hand, else stored, else computed link by link; all of it is in ``near``
        afterwards. What is computed here is stored when it is asked for itself."""
        near |= self._at_hand(link.chunk_id for link in chain if link.chunk_id not in near)
        lens = {link.chunk_id: len(link.token_ids) for link in chain if link.chunk_id not in near}
        near |= {
            one.key: one.segment for one in await self._load(ctx.tenant, lens) if one.segment is not None
        }
        segments: list[Segment] = []
        for link in chain:
            if link.chunk_id not in near:
                near[link.chunk_id] = await self._encode(ctx, turn, link.token_ids, segments, index)
            segments.append(near[link.chunk_id])
        return segments

    async def _encode(
        self, ctx: RequestContext, turn: Turn, token_ids: Ids, chain: Sequence[Segment], index: int
    ) -> Segment:
        """A chunk at a time: others get at the model in between."""
        behind = tuple(chain)
        try:
            (segment,) = await self._thread.run(ctx, turn, lambda: self._scorer.encode([token_ids], behind))
        except ContextTooLong as error:
            raise ContextTooLong(error.detail.replace("chunks[0]", f"chunks[{index}]")) from None
        self.counts.encoded += 1
        return segment

    def _write_back(self, ctx: RequestContext, lost: Loaded, chunk: Chunk, segment: Segment) -> None:
        """A store that takes nothing must not fill the memory with what waits for it: that is computed again
        some time."""
        if self._write_back_bytes + segment.num_bytes > self.resident.capacity_bytes:
            log.warning("auxiliary KV of chunk %s is not written back: too much waits already", lost.key)
            return
        self._write_back_bytes += segment.num_bytes
        loop = asyncio.get_running_loop()

        def written(saved: Saved) -> None:
            self._write_back_bytes -= segment.num_bytes
            self.counts.written += saved.error is None

        self._loader.save(
            self._computed(ctx, chunk, segment, replace=lost.broken, write_back=True),
            lambda saved: call_on(loop, written, saved),
        )

    def _computed(
        self, ctx: RequestContext, chunk: Chunk, segment: Segment, *, replace: bool, write_back: bool = False
    ) -> ComputedChunk:
        return ComputedChunk(
            chunk.chunk_id,
            self._prefix_ids,
            chunk.token_ids,
            segment,
            replace=replace,
            write_back=write_back,
            tenant=ctx.tenant,
            parent_id=chunk.parent_id,
        )
