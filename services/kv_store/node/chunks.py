"""One node's chunks: its own tiers, the object store behind them, and the way from one to the other.

open        memory ─▶ disk ─▶ fetch from the object store or another node ─▶ absent
                       └────▶ missed for the first time: the reader receives it from the object store itself
put         staged ─▶ verified ─▶ object store ─▶ copy on disk      (no object store: ─▶ primary on disk)
write back  staged ─▶ verified ─▶ primary on disk ┈▶ object store ─▶ copy on disk
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress

from services.kv_store.blobs.protocol import Blobs, From, Span
from services.kv_store.fetching.sources import PeerSearch
from services.kv_store.node.writes import WritableTiers
from services.kv_store.tiers.chunk_names import blob_of
from services.kv_store.tiers.files import FileCopy
from services.kv_store.tiers.object_chunks import all_objects, find_object, object_frame
from shared.errors import CorruptData, NotFound
from shared.kv_format import ChunkHeader, inspect_chunk
from shared.kv_reports import TierStats
from shared.kv_types import OpenedChunk


class NodeTiers(WritableTiers):
    """A node's tiers, with the object store behind them, for reading as well."""

    @property
    def truth(self) -> Blobs:
        """Keeps a few small things that must not be lost, beside the chunks."""
        return self.disk.primary_blobs if self.objects is None else self.objects

    # ---- reading

    async def open(
        self, chunk_ids: Sequence[str], peers: PeerSearch, direct: bool = False
    ) -> list[OpenedChunk]:
        """In the order asked for. What goes wrong on the way makes a chunk absent: its user can compute it.
        ``direct``: that user can read from the object store itself."""
        wanted, tenant = list(dict.fromkeys(chunk_ids)), peers.ctx.tenant
        self.counters["opens"] += len(wanted)
        found = dict(zip(wanted, await self._open_fast(wanted, tenant), strict=True))
        missing = [chunk_id for chunk_id, opened in found.items() if opened is None]
        self.counters.update(f"{opened.tier}_hits" for opened in found.values() if opened is not None)
        found.update(
            zip(
                missing,
                await asyncio.gather(*(self._open_elsewhere(c, peers, direct) for c in missing)),
                strict=True,
            )
        )
        for chunk_id, opened in found.items():
            if self._promotion is not None and opened is not None and opened.remote is None:
                self._promotion.used(chunk_id, tenant)
        return [found[c] or OpenedChunk(c, exists=False) for c in chunk_ids]

    def prefetch(self, chunk_ids: Sequence[str], peers: PeerSearch, direct: bool = False) -> None:
        """Starts fetching what is not here. ``direct``: but what its reader will receive itself."""
        for chunk_id in chunk_ids:
            if chunk_id in self._fetches or self._is_here(chunk_id):
                continue
            if not direct or self._fetches.link(chunk_id) is None:
                self.counters["prefetches"] += 1
                self._fetches.start(chunk_id, peers)

    def read(self, chunk_id: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """The bytes of the file, from the first tier that has it. Blocks.

        Raises:
            NotFound: not stored.
        """
        byte_range = From(offset) if length is None else Span(offset, length)
        for tier in self.own:
            if tier.find(chunk_id) is not None:
                pieces = tier.read(chunk_id, byte_range)
                with suppress(NotFound):  # deleted or evicted meanwhile
                    first = next(pieces, b"")
                    yield first
                    yield from pieces
                    return
        try:
            if self.objects is None:
                raise NotFound("no such blob")
            yield from self.objects.read(blob_of(chunk_id), byte_range)
        except NotFound:
            raise NotFound(f"chunk {chunk_id}: not stored") from None

    def find(self, chunk_id: str) -> FileCopy | None:
        """A copy in any of this node's own tiers."""
        return next((c for tier in self.own[::-1] if (c := tier.find(chunk_id))), None)

    def header_of(self, chunk_id: str) -> ChunkHeader | None:
        """Reads what the stored file says of itself; None: there is none that is whole. Blocks.

        Raises:
            Unavailable: the object store does not answer.
        """
        with suppress(NotFound, CorruptData):
            for tier in self.own[::-1]:
                if tier.find(chunk_id) is not None:
                    return inspect_chunk(tier.path_of(chunk_id), self.keys).header
            if self.objects is not None:
                return object_frame(self.objects, chunk_id, self.keys).header
        return None

    async def stored(self, chunk_ids: Sequence[str], ask_objects: bool = True) -> dict[str, FileCopy]:
        """Those that are whole in the object store, or have their primary copy here until they are."""
        primary = {c: copy for c in chunk_ids if (copy := self.disk.find(c)) is not None and copy.primary}
        asked = (
            []
            if self.objects is None or not ask_objects
            else [c for c in dict.fromkeys(chunk_ids) if c not in primary]
        )
        stats = await asyncio.gather(*(self.in_threads(find_object, self.objects, c) for c in asked))
        return {**primary, **{c: stat for c, stat in zip(asked, stats, strict=True) if stat is not None}}

    # ---- writing

    async def delete_object(self, chunk_id: str) -> bool:
        """Whether it was in the object store."""
        return self.objects is not None and await self.in_threads(self.objects.delete, blob_of(chunk_id))

    # ---- for scrubbing, pins and garbage collection
    async def fetched(self, chunk_id: str, peers: PeerSearch) -> bool:
        """Waits until the chunk is whole in a tier of this node; False: it cannot be had."""
        if not self._is_here(chunk_id):
            await asyncio.shield(self._fetches.start(chunk_id, peers)[1])
        return self._is_here(chunk_id)

    def pin(self, chunk_ids: frozenset[str]) -> None:
        """These, and no others, stay in the tiers that they are in."""
        for tier in self.own:
            tier.pin(chunk_ids)

    def leased(self, chunk_id: str) -> bool:
        """Somebody may be reading it."""
        return chunk_id in self._fetches or any(tier.leased(chunk_id) for tier in self.own)

    def stats(self) -> tuple[tuple[TierStats, ...], dict[str, int]]:
        """Of every tier, and the counters since the start."""
        counters = {**self.counters, "evictions": sum(tier.num_evictions for tier in self.own)}
        return tuple(s for tier in self.own for s in tier.stats()), counters

    def object_stats(self) -> TierStats | None:
        """Counts what is in the object store, page by page. Blocks."""
        if self.objects is None:
            return None
        blobs = list(all_objects(self.objects))
        return TierStats("objects", len(blobs), sum(b.size_bytes for b in blobs))

    def clean(self, stale_staging_s: float) -> None:
        for tier in self.own:
            tier.staging.clean(stale_staging_s)

    def check_invariants(self, verify: bool = True) -> None:
        for tier in self.own:
            tier.check_invariants(verify)

    # ---- on the way in

    def _open_here(self, chunk_ids: Sequence[str], tenant: str) -> list[OpenedChunk | None]:
        return [next((o for tier in self.own if (o := tier.open(c, tenant))), None) for c in chunk_ids]

    async def _open_fast(self, chunk_ids: Sequence[str], tenant: str) -> list[OpenedChunk | None]:
        """In threads that nothing slow runs in."""
        return await asyncio.get_running_loop().run_in_executor(
            self._openers, self._open_here, chunk_ids, tenant
        )

    async def _open_elsewhere(self, chunk_id: str, peers: PeerSearch, direct: bool) -> OpenedChunk | None:
        if chunk_id not in self._fetches and self._is_here(chunk_id):  # it arrived in between
            (opened,) = await self._open_fast([chunk_id], peers.ctx.tenant)
            if opened is not None:
                return opened
        opened = self._fetches.remote(chunk_id) if direct else None
        if opened is None:
            opened = await self._fetches.open(chunk_id, peers)
        if opened is not None:
            self.disk.lease(chunk_id)
        return opened

    def _is_here(self, chunk_id: str) -> bool:
        return self.find(chunk_id) is not None
