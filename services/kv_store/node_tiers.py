"""Everything that one node does with chunks: its own tiers, the object store behind them, and the way from one to the other.

    open    memory ─▶ disk ─▶ fetch from the object store or another node ─▶ absent
    put     staged ─▶ verified ─▶ object store ─▶ copy on disk          (no object store: ─▶ kept on disk)
    behind  staged ─▶ verified ─▶ kept on disk ┈▶ object store ─▶ copy on disk

What is deleted or replaced goes from the disk first and from memory then, for copies go the other way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from services.kv_store.blobs import Blobs, BlobStat, From, Last, Span
from services.kv_store.chunk_names import CHUNKS, blob_of, chunk_of
from services.kv_store.fetch import FetchConfig
from services.kv_store.fetches import Fetches
from services.kv_store.lanes import Locks
from services.kv_store.local_tier import Copy, LocalTier, verified
from services.kv_store.promotion import Promotion
from services.kv_store.sources import PeerSearch
from services.kv_store.uploader import Uploader
from shared.errors import CorruptData, KvquiltError, NewerFormat, NotFound, StorageFull
from shared.kv_format import TAIL_GUESS_BYTES, ChunkSummary, ShortTail, inspect_chunk, summary_of_tail
from shared.kv_types import OpenedChunk, TierStats

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

_NUM_THREADS = 8


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """``tier``: memory, disk or pending."""

    chunk_id: str
    tier: str
    size_bytes: int
    modified_s: float


class NodeTiers:
    """Lives in one event loop; what blocks runs in threads of its own."""

    def __init__(
        self,
        disk: LocalTier,
        memory: LocalTier | None = None,
        objects: Blobs | None = None,
        fetch: FetchConfig | None = None,
        prefer_peers: bool = False,
    ) -> None:
        self.disk, self.memory, self.objects = disk, memory, objects
        self.counters: Counter[str] = Counter()
        self._tiers = [t for t in (memory, disk) if t is not None]  # in the order of reading
        self._openers = ThreadPoolExecutor(2, "kv-open")
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "kv-work")
        self._locks = Locks()
        self._uploader = Uploader(self._upload)
        self._promotion = None if memory is None else Promotion(disk, memory, self.counters, self._threads)
        self._fetches = Fetches(
            [disk] if memory is None else [disk, memory],
            objects,
            fetch or FetchConfig(),
            prefer_peers,
            self.counters,
            self._threads,
        )

    @property
    def truth(self) -> Blobs:
        """Where a few small things are kept that must not be lost, beside the chunks."""
        return self.disk.kept if self.objects is None else self.objects

    # ---- reading

    async def open(self, chunk_ids: Sequence[str], peers: PeerSearch) -> list[OpenedChunk]:
        """In the order asked for. What goes wrong on the way makes a chunk absent: its user can compute it."""
        wanted = list(dict.fromkeys(chunk_ids))
        self.counters["opens"] += len(wanted)
        found = dict(zip(wanted, await self._open_fast(wanted), strict=True))
        missing = [chunk_id for chunk_id, opened in found.items() if opened is None]
        self.counters.update(f"{opened.tier}_hits" for opened in found.values() if opened is not None)
        found.update(zip(missing, await asyncio.gather(*(self._open_elsewhere(c, peers) for c in missing)), strict=True))
        for chunk_id, opened in found.items():
            if self._promotion is not None and opened is not None:
                self._promotion.used(chunk_id)
        return [found[c] or OpenedChunk(c, exists=False) for c in chunk_ids]

    def prefetch(self, chunk_ids: Sequence[str], peers: PeerSearch) -> None:
        """Starts fetching what is not here."""
        for chunk_id in chunk_ids:
            if chunk_id not in self._fetches and not self._is_here(chunk_id):
                self.counters["prefetches"] += 1
                self._fetches.start(chunk_id, peers)

    def read(self, chunk_id: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """The bytes of the file, from the first tier that has it. Blocks.

        Raises:
            NotFound: not stored.
        """
        byte_range = From(offset) if length is None else Span(offset, length)
        for tier in self._tiers:
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

    def find(self, chunk_id: str) -> Copy | None:
        """A copy in any of this node's own tiers."""
        return next((c for tier in reversed(self._tiers) if (c := tier.find(chunk_id))), None)

    async def stored(self, chunk_ids: Sequence[str], ask_objects: bool = True) -> dict[str, Copy]:
        """Those that are whole in the object store, or kept here until they are."""
        kept = {c: copy for c in chunk_ids if (copy := self.disk.find(c)) is not None and copy.kept}
        asked = [] if self.objects is None or not ask_objects else [c for c in dict.fromkeys(chunk_ids) if c not in kept]
        stats = await asyncio.gather(*(self._in_threads(self._object_copy, c) for c in asked))
        return {**kept, **{c: stat for c, stat in zip(asked, stats, strict=True) if stat is not None}}

    # ---- writing

    async def exists(self, chunk_id: str) -> bool:
        """Whether ``put`` would find it stored already; it is durable then."""
        async with self._locks.hold(chunk_id):
            return await self._exists(chunk_id, behind=False, uploaded=True)

    async def put(self, chunk_id: str, staged: Path, replace: bool = False, behind: bool = False) -> bool:
        """Takes over a file of ``disk.staging``; returns whether the chunk was stored already (unless ``replace``, the new file is
        dropped). When it returns the chunk is durable: in the object store if there is one, else (or ``behind``) on the disk.

        Raises:
            CorruptData: it is not a whole chunk file, or another chunk's.
            StorageFull, Unavailable: not stored.
        """
        try:
            async with self._locks.hold(chunk_id):
                copied = self.objects is None and self._is_here(chunk_id)
                durable = await self._exists(chunk_id, behind, uploaded=not behind and not replace)
                newer = await self._in_threads(self._is_newer, chunk_id, durable and replace and not behind)
                if not newer and (not durable or replace):
                    await self._store(chunk_id, staged, behind)
                return durable or copied or newer
        finally:
            await self._in_threads(self.disk.staging.discard, staged)

    async def delete(self, chunk_id: str) -> bool:
        """From this node's tiers; whether it was here. Nothing that this node was bringing to the object store arrives there after
        this."""
        async with self._locks.hold(chunk_id):
            self._fetches.drop(chunk_id)
            return await self._in_threads(self._remove_here, chunk_id)

    async def delete_object(self, chunk_id: str) -> bool:
        """Whether it was in the object store."""
        return self.objects is not None and await self._in_threads(self.objects.delete, blob_of(chunk_id))

    def upload_pending(self) -> None:
        """Goes on bringing to the object store what is only here: for the start of an agent, and whenever."""
        if self.objects is not None:
            self._uploader.add(c.chunk_id for c in self.disk.copies(kept_only=True))

    async def uploaded(self) -> None:
        """Returns once nothing waits for the object store."""
        await self._uploader.idle()

    async def close(self) -> None:
        """Ends what runs in the background. What was acknowledged is durable already."""
        await asyncio.gather(self._uploader.close(), self._fetches.close())
        if self._promotion is not None:
            await self._promotion.close()
        for pool in (self._openers, self._threads):
            pool.shutdown(wait=False, cancel_futures=True)

    # ---- every copy: for scrubbing, pins and garbage collection

    def copies(self) -> Iterator[LocalCopy]:
        """Every copy in every tier of this node."""
        for tier in self._tiers:
            for copy in tier.copies():
                name = tier.kept_name if copy.kept else tier.name
                yield LocalCopy(copy.chunk_id, name, copy.size_bytes, copy.modified_s)

    async def verify_copy(self, chunk_id: str, tier: str) -> int:
        """Reads every byte of a copy; ``tier``: memory, disk, pending or objects. Returns how many there were.

        Raises:
            NotFound: it is gone meanwhile.
            CorruptData: it is not what was stored.
            NewerFormat: this version cannot tell.
            StorageFull, Unavailable: it could not be read.
        """
        if tier == "objects":
            return await self._in_threads(self._verify_object, chunk_id)
        where = self._tier(tier)
        try:
            return (await self._in_threads(verified, where.path_of(chunk_id), chunk_id)).size_bytes
        except NotFound:
            await self._in_threads(where.check_again, chunk_id)  # somebody removed the file behind our back
            raise

    async def remove_copy(self, chunk_id: str, tier: str) -> bool:
        """Whether it was there. A reader that has it open goes on."""
        async with self._locks.hold(chunk_id):
            if tier == "objects":
                return await self.delete_object(chunk_id)
            return await self._in_threads(self._tier(tier).remove, chunk_id)

    async def restore(self, chunk_id: str, peers: PeerSearch) -> bool:
        """Replaces what is damaged by what is whole: local copies by a fetched one, the object by a local or a fetched one. Whether
        a good copy is where the truth should be now."""
        async with self._locks.hold(chunk_id):
            self._fetches.drop(chunk_id)
            good = await self._in_threads(self._remove_damaged, chunk_id)
        if good is None:
            self._fetches.damaged_objects.discard(chunk_id)
            await self.fetched(chunk_id, peers)
            good = self.find(chunk_id)
        if good is None:
            return False
        if self.objects is None:
            return good.kept or await self._make_truth(chunk_id)
        try:
            await self.verify_copy(chunk_id, "objects")
        except (NotFound, CorruptData):
            return await self._make_truth(chunk_id)
        return True

    async def fetched(self, chunk_id: str, peers: PeerSearch) -> bool:
        """Waits until the chunk is whole in a tier of this node; False: it cannot be had."""
        if not self._is_here(chunk_id):
            await asyncio.shield(self._fetches.start(chunk_id, peers)[1])
        return self._is_here(chunk_id)

    def pin(self, chunk_ids: frozenset[str]) -> None:
        """These, and no others, stay in the tiers that they are in."""
        for tier in self._tiers:
            tier.pin(chunk_ids)

    def leased(self, chunk_id: str) -> bool:
        """Somebody may be reading it."""
        return chunk_id in self._fetches or any(tier.leased(chunk_id) for tier in self._tiers)

    def stats(self) -> tuple[tuple[TierStats, ...], dict[str, int]]:
        """Of every tier, and the counters since the start."""
        counters = {**self.counters, "evictions": sum(tier.num_evictions for tier in self._tiers)}
        return tuple(s for tier in self._tiers for s in tier.stats()), counters

    def object_stats(self) -> TierStats | None:
        """Counts what is in the object store, page by page. Blocks."""
        if self.objects is None:
            return None
        blobs = list(all_objects(self.objects))
        return TierStats("objects", len(blobs), sum(b.size_bytes for b in blobs))

    def clean(self, stale_staging_s: float) -> None:
        for tier in self._tiers:
            tier.staging.clean(stale_staging_s)

    def check_invariants(self, verify: bool = True) -> None:
        for tier in self._tiers:
            tier.check_invariants(verify)

    # ---- on the way in

    def _open_here(self, chunk_ids: Sequence[str]) -> list[OpenedChunk | None]:
        return [next((o for tier in self._tiers if (o := tier.open(c))), None) for c in chunk_ids]

    async def _open_fast(self, chunk_ids: Sequence[str]) -> list[OpenedChunk | None]:
        """In threads that nothing slow runs in."""
        return await asyncio.get_running_loop().run_in_executor(self._openers, self._open_here, chunk_ids)

    async def _open_elsewhere(self, chunk_id: str, peers: PeerSearch) -> OpenedChunk | None:
        if chunk_id not in self._fetches and self._is_here(chunk_id):  # it arrived in between
            (opened,) = await self._open_fast([chunk_id])
            if opened is not None:
                return opened
        opened = await self._fetches.open(chunk_id, peers)
        if opened is not None:
            self.disk.lease(chunk_id)
        return opened

    # ---- on the way out

    async def _exists(self, chunk_id: str, behind: bool, uploaded: bool) -> bool:
        """Whether it is durable somewhere. ``uploaded``: what waits for the object store is brought there first."""
        copy = self.disk.find(chunk_id)
        if copy is not None and copy.kept:
            await self._in_threads(self.disk.commit, chunk_id)
            if uploaded:
                await self._upload_locked(chunk_id)
            return True
        if self.objects is None or chunk_id in self._fetches.damaged_objects:
            return False
        try:
            return await self._in_threads(self.objects.stat, blob_of(chunk_id)) is not None
        except KvquiltError:
            if behind:  # it can be stored here, and the object store be asked later
                return False
            raise

    async def _store(self, chunk_id: str, staged: Path, behind: bool) -> None:
        summary = await self._in_threads(verified, staged, chunk_id)
        self._fetches.drop(chunk_id)
        if self.objects is None or behind:
            await self._in_threads(self._keep_truth, chunk_id, staged, summary)
            if self.objects is not None:
                self._uploader.add([chunk_id])
        else:
            await self._in_threads(self._put_object, chunk_id, staged, summary)
            self.counters["uploads"] += 1
        self._fetches.damaged_objects.discard(chunk_id)

    def _keep_truth(self, chunk_id: str, staged: Path, summary: ChunkSummary) -> None:
        self.disk.with_room(summary.size_bytes, lambda: self.disk.keep(chunk_id, staged, summary, truth=True))
        if self.memory is not None:
            self.memory.remove(chunk_id)

    def _put_object(self, chunk_id: str, staged: Path, summary: ChunkSummary) -> None:
        assert self.objects is not None
        self.objects.put_file(blob_of(chunk_id), staged)
        self.disk.remove(chunk_id)  # it may be kept there, which a copy does not replace
        if staged.exists():
            with suppress(StorageFull):  # a copy is not worth an error
                self.disk.keep(chunk_id, staged, summary)
        if self.memory is not None:
            self.memory.remove(chunk_id)

    async def _upload(self, chunk_id: str) -> None:
        async with self._locks.hold(chunk_id):
            await self._upload_locked(chunk_id)

    async def _upload_locked(self, chunk_id: str) -> None:
        """Brings what is kept here to the object store; nothing if it is not here any more."""
        copy = self.disk.find(chunk_id)
        if self.objects is None or copy is None or not copy.kept:
            return
        version, path = self.disk.version(chunk_id), self.disk.path_of(chunk_id)
        try:
            await self._in_threads(verified, path, chunk_id)
            if not await self._in_threads(self._is_newer_object, chunk_id):
                await self._in_threads(self.objects.put_file, blob_of(chunk_id), path)
                self.counters["uploads"] += 1
        except (NotFound, FileNotFoundError):
            pass  # settling finds out
        except CorruptData as error:
            log.error("what waited for the object store is damaged: %s", error.detail)
            await self._in_threads(self.disk.remove, chunk_id)
        await self._in_threads(self.disk.settle, chunk_id, version)

    def _is_newer(self, chunk_id: str, look_at_object: bool) -> bool:
        """A file of a newer format is not replaced, wherever it is. Uploading looks at the object itself."""
        for tier in self._tiers:
            with suppress(NotFound, CorruptData):
                try:
                    inspect_chunk(tier.path_of(chunk_id))
                except NewerFormat:
                    return True
        return look_at_object and self._is_newer_object(chunk_id)

    def _is_newer_object(self, chunk_id: str) -> bool:
        try:
            if self.objects is not None:
                inspect_object(self.objects, chunk_id)
        except NewerFormat:
            return True
        except (NotFound, CorruptData):
            pass
        return False

    async def _make_truth(self, chunk_id: str) -> bool:
        """Puts a good local copy where the truth should be."""
        staged = await self._in_threads(self.disk.staging.copy_of, self._copy_path(chunk_id))
        try:
            async with self._locks.hold(chunk_id):
                await self._store(chunk_id, staged, behind=False)
        finally:
            await self._in_threads(self.disk.staging.discard, staged)
        return True

    # ---- small things

    def _remove_here(self, chunk_id: str) -> bool:
        removed = self.disk.remove(chunk_id)
        return (self.memory is not None and self.memory.remove(chunk_id)) or removed

    def _remove_damaged(self, chunk_id: str) -> Copy | None:
        """A good copy, if there is one; damaged ones are removed."""
        good = None
        for tier in self._tiers:
            copy = tier.find(chunk_id)
            if copy is not None:
                try:
                    verified(tier.path_of(chunk_id), chunk_id)
                    good = copy
                except CorruptData:
                    tier.remove(chunk_id)
                except (NotFound, NewerFormat):
                    pass
        return good

    def _verify_object(self, chunk_id: str) -> int:
        assert self.objects is not None
        stat = self.objects.stat(blob_of(chunk_id))
        if stat is None:
            raise NotFound(f"chunk {chunk_id}: not stored")
        file = self.disk.allocate(stat.size_bytes)
        try:
            offset = 0
            for piece in self.objects.read(blob_of(chunk_id), Span(0, stat.size_bytes)):
                file.write(offset, piece)
                offset += len(piece)
            return verified(file.path, chunk_id).size_bytes
        finally:
            file.close()
            self.disk.staging.discard(file.path)

    def _object_copy(self, chunk_id: str) -> Copy | None:
        assert self.objects is not None
        stat = self.objects.stat(blob_of(chunk_id))
        return Copy(chunk_id, stat.size_bytes, stat.modified_s) if stat else None

    def _copy_path(self, chunk_id: str) -> Path:
        return next(tier for tier in self._tiers if tier.find(chunk_id) is not None).path_of(chunk_id)

    def _is_here(self, chunk_id: str) -> bool:
        return self.find(chunk_id) is not None

    def _tier(self, name: str) -> LocalTier:
        if name == "memory" and self.memory is not None:
            return self.memory
        return self.disk

    async def _in_threads(self, call: Callable[..., ResultT], *args: object) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)


def all_objects(objects: Blobs, start_after: str = "", page_len: int = 1000) -> Iterator[BlobStat]:
    """Every chunk in the object store after the one called ``start_after``, in the order of ids. Blocks."""
    after = blob_of(start_after) if start_after else ""
    while True:
        page = objects.list(CHUNKS, after, page_len)
        yield from (blob for blob in page.blobs if chunk_of(blob.name))
        if not page.truncated:
            return
        after = page.blobs[-1].name


def inspect_object(objects: Blobs, chunk_id: str) -> ChunkSummary:
    """What its end says, without reading the rest. Blocks. Raises like ``summary_of_tail`` and ``Blobs.read``."""
    stat, length = objects.stat(blob_of(chunk_id)), TAIL_GUESS_BYTES
    if stat is None:
        raise NotFound(f"chunk {chunk_id}: not stored")
    while True:
        tail = b"".join(objects.read(blob_of(chunk_id), Last(length)))
        try:
            return summary_of_tail(tail, stat.size_bytes)
        except ShortTail as error:
            if error.needed_bytes <= length:
                raise CorruptData(f"chunk {chunk_id}: it ends early") from None
            length = error.needed_bytes
