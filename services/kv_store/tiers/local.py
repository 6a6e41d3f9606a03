"""One of a node's own tiers: which chunks lie in a directory, how much room they take, and which of them go
when there is none.

A *primary copy* may be the only one there is: it is durable and never evicted. The others are copies of what
is whole elsewhere. Long, because index, eviction queue, leases and byte counters change together, under one
lock, with the names of the files.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

from services.kv_store.blobs.directory import DirectoryBlobs
from services.kv_store.blobs.disk import Disk, Stamp, stamp_of
from services.kv_store.blobs.protocol import WHOLE, ByteRange
from services.kv_store.blobs.staging import StagedFile, Staging
from services.kv_store.tiers.chunk_files import is_damaged, is_newer, verified
from services.kv_store.tiers.chunk_names import blob_of
from services.kv_store.tiers.files import FileCopy, TierFiles
from services.kv_store.tiers.leases import Leases
from services.kv_store.tiers.tenant_queue import TenantQueue
from shared.errors import CorruptData, NewerFormat, NotFound, StorageFull
from shared.kv_format import ChunkSummary, SealKeys, inspect_chunk, verify_chunk
from shared.kv_reports import TierStats
from shared.kv_types import OpenedChunk

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

LEASE_S = 60.0
_MOST_KNOWN_LAYOUTS = 16_384


class Reservation:
    """Room in a tier for what is being written, until ``release``, which may be called again."""

    def __init__(self, release: Callable[[int], None], num_bytes: int) -> None:
        self._release, self._num_bytes = release, num_bytes

    def release(self) -> None:
        num_bytes, self._num_bytes = self._num_bytes, 0
        self._release(num_bytes)


class LocalTier:
    """Thread-safe; every method may block on the disk. The file system is the truth; what it says is found
    once, at the start.

    Raises (any method): ``StorageFull``, ``InternalError`` when the disk fails.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        disk: Disk | None = None,
        primary_name: str = "",
        capacity_bytes: int = 0,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = time.monotonic,
        keys: SealKeys | None = None,
        floor_share: float = 0.0,
    ) -> None:
        """``primary_name``: the tier that primary copies count as, if it is another. ``capacity_bytes`` 0: as
        much as fits. ``keys``: of the seals that are believed; None: all are. ``floor_share``: see
        ``Floors``; of what copies take where there is no capacity."""
        self._keys = keys
        self.name, self.primary_name, self.capacity_bytes = name, primary_name or name, capacity_bytes
        self.staging = Staging(directory / "staging", disk, clock)
        self._files = TierFiles(directory, self.staging, disk)
        self._lock = threading.RLock()  # held while files change names
        self._layouts: OrderedDict[str, tuple[Stamp, ChunkSummary]] = OrderedDict()
        self._leases = Leases(lease_s, clock)
        self._pins: frozenset[str] = frozenset()
        self._queue = TenantQueue(floor_share)
        self._uses: Counter[str] = Counter()
        self._leaving: set[str] = set()  # copies whose name as primary ones is there
        self._sorted: list[str] | None = None
        self._reserved_bytes = self.num_evictions = 0
        self._index = self._files.scan(clean=True)
        self._num_bytes = sum(c.size_bytes for c in self._index.values())
        for copy in self._index.values():
            if not copy.primary:
                self._queue.admit(copy.chunk_id, copy.size_bytes)
        self._shrink()

    @property
    def primary_blobs(self) -> DirectoryBlobs:
        """The directory itself, where nothing is evicted."""
        return self._files.primary

    # ---- looking

    def find(self, chunk_id: str) -> FileCopy | None:
        with self._lock:
            return self._index.get(chunk_id)

    def copies(self, start_after: str = "", limit: int = 0, primary_only: bool = False) -> list[FileCopy]:
        """In the order of ids; ``limit`` 0: all."""
        with self._lock:
            if self._sorted is None:
                self._sorted = sorted(self._index)
            start = bisect_right(self._sorted, start_after)
            found = (self._index[c] for c in self._sorted[start:])
            return list(islice((c for c in found if c.primary or not primary_only), limit or None))

    def name_of(self, copy: FileCopy) -> str:
        """The tier that the copy counts as."""
        return self.primary_name if copy.primary else self.name

    def path_of(self, chunk_id: str) -> Path:
        """Names its file.

        Raises:
            NotFound: not in this tier.
        """
        copy = self.find(chunk_id)
        if copy is None:
            raise NotFound(f"chunk {chunk_id}: not stored")
        return self._files.path_of(copy)

    def is_newer(self, chunk_id: str) -> bool:
        """Whether a later version of the format wrote its file, or it is sealed with a key that is not
        here."""
        return is_newer(lambda: inspect_chunk(self.path_of(chunk_id), self._keys))

    def read(self, chunk_id: str, byte_range: ByteRange = WHOLE) -> Iterator[bytes]:
        """The bytes of its file in pieces.

        Raises:
            NotFound: not in this tier (raised by the first ``next``).
        """
        copy = self.find(chunk_id)
        return self._files.blobs(copy is not None and copy.primary).read(blob_of(chunk_id), byte_range)

    def open(self, chunk_id: str, tenant: str = "") -> OpenedChunk | None:
        """Tells where a reader of ``tenant`` finds it, and promises to leave it there for a while. A file
        whose frame is damaged, or that somebody changed, is removed; one of a newer format is left alone.
        Both count as absent."""
        with self._lock:
            copy = self._index.get(chunk_id)
            if copy is None:
                return None
            self.lease(chunk_id)
            self._queue.touch(chunk_id, tenant)
            path = self._files.path_of(copy)
            known = self._layouts.get(chunk_id)
        try:
            stamp = stamp_of(path)
            if known is None or known[0] != stamp:
                summary = (
                    inspect_chunk(path, self._keys) if known is None else verified(path, chunk_id, self._keys)
                )
                self._remember(chunk_id, stamp, summary)
            else:
                summary = known[1]
        except (FileNotFoundError, NotFound):
            self.check_again(chunk_id)
            return None
        except CorruptData as error:
            log.warning("a copy in tier %s is damaged: %s", self.name, error.detail)
            self.remove_if(chunk_id, lambda: is_damaged(path, chunk_id, self._keys))
            return None
        except NewerFormat as error:
            log.warning("a copy in tier %s cannot be read by this version: %s", self.name, error.detail)
            return None
        return OpenedChunk(chunk_id, True, str(path), summary.size_bytes, summary.layers, tier=self.name)

    def num_uses(self, chunk_id: str) -> int:
        """Counts another use of a chunk that is worth a faster tier; how many there were since it came
        here."""
        with self._lock:
            self._uses[chunk_id] += 1
            return self._uses[chunk_id]

    def room_bytes(self) -> int:
        """Returns the bytes that its disk can still take, evictable copies made room for."""
        free = self._files.free_bytes()
        with self._lock:
            return free + self._queue.num_bytes

    def stats(self) -> list[TierStats]:
        """One for the copies, one for primary ones if those are called differently."""
        with self._lock:
            copies = list(self._index.values())
            pins = self._pins
        names = dict.fromkeys((self.name, self.primary_name))
        return [self._stats_of(name, [c for c in copies if self.name_of(c) == name], pins) for name in names]

    # ---- changing

    def reserve(self, num_bytes: int, tenant: str = "") -> Reservation | None:
        """Makes room for a copy of ``tenant``'s that is about to be written; None: there is none."""
        with self._lock:
            if not self._make_room(num_bytes, tenant):
                return None
            self._reserved_bytes += num_bytes
            return Reservation(self._unreserve, num_bytes)

    def allocate(self, size_bytes: int, tenant: str | None = None) -> StagedFile:
        """A new staged file. Where the disk is full before the capacity is reached, copies make room.
        ``tenant``: as in ``with_room``.

        Raises:
            StorageFull: there are too few of them.
        """
        return self.with_room(size_bytes, lambda: self.staging.allocate(size_bytes), tenant)

    def with_room(self, num_bytes: int, write: Callable[[], ResultT], tenant: str | None = None) -> ResultT:
        """``write``, and again after evicting that much if the disk was full. ``tenant``: whose copy it is;
        None: it is the truth, before which floors yield."""
        try:
            return write()
        except StorageFull:
            with self._lock:
                if not self._evict(num_bytes, tenant):
                    raise
            return write()

    def keep(
        self,
        chunk_id: str,
        staged: Path,
        summary: ChunkSummary,
        *,
        truth: bool = False,
        tenant: str = "",
        reservation: Reservation | None = None,
        unless: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Gives a staged, verified file its place. As ``truth`` it is durable when this returns; a copy is
        ``tenant``'s. False: there
        is no room, or ``unless`` says so at the last moment; the staged file is then still there.

        Raises:
            StorageFull: no room for the truth.
        """
        blobs, blob = self._files.blobs(truth), blob_of(chunk_id)
        blobs.prepare(blob, staged)
        with self._lock:
            if reservation is not None:
                reservation.release()
            old = self._index.get(chunk_id)
            if unless() or (old is not None and old.primary and not truth):
                return False
            grows_by = summary.size_bytes - (old.size_bytes if old else 0)
            if not self._make_room(grows_by, None if truth else tenant, besides=chunk_id):
                if truth:
                    raise StorageFull(
                        "no space left where KV is stored; delete documents or enlarge the volume"
                    )
                return False
            try:
                blobs.place(blob, staged)
                if truth:
                    self._leaving.discard(chunk_id)
                    self._files.cache.delete(blob)
            finally:
                self.check_again(chunk_id)  # renamed or not, when the disk failed
                self._queue.assign(chunk_id, tenant)
            self._remember(chunk_id, stamp_of(self.path_of(chunk_id)), summary)
        blobs.commit(blob)
        return True

    def demote(self, chunk_id: str, version: str) -> None:
        """A primary copy is whole elsewhere now: it becomes a plain one, if it is what it was. Its old name
        stays until ``leave``, for those who were told of it."""
        with self._lock:
            copy = self._index.get(chunk_id)
            if copy is None or not copy.primary or self.version(chunk_id) != version:
                self.check_again(chunk_id)
                return
            blob = blob_of(chunk_id)
            second = self.staging.second_name(self._files.path_of(copy))
            self._files.cache.prepare(blob, second)
            self._files.cache.place(blob, second)
            self._leaving.add(chunk_id)
            self.check_again(chunk_id)
            self._shrink()

    def leave(self, chunk_id: str) -> None:
        """Ends the name that a demoted chunk had."""
        with self._lock:
            if chunk_id in self._leaving:
                self._leaving.discard(chunk_id)
                self._files.primary.delete(blob_of(chunk_id))

    def version(self, chunk_id: str) -> str:
        """Changes whenever the file does; empty: there is none."""
        try:
            return str(stamp_of(self.path_of(chunk_id)))
        except (FileNotFoundError, NotFound):
            return ""

    def commit(self, chunk_id: str) -> None:
        """Makes sure that the truth that is here is durable: whoever placed it may not have come to this
        yet."""
        copy = self.find(chunk_id)
        if copy is not None and copy.primary:
            self._files.primary.commit(blob_of(chunk_id))

    def remove(self, chunk_id: str) -> bool:
        """Whether it was there; it does not come back, also when the machine loses power. Who reads it goes
        on."""
        copy = self.find(chunk_id)
        removed = self.remove_if(chunk_id, lambda: True)
        if removed and copy is not None:
            self._files.sync_removal(copy)
        return removed

    def remove_if(self, chunk_id: str, condition: Callable[[], bool]) -> bool:
        with self._lock:
            return chunk_id in self._index and condition() and self._drop(chunk_id)

    def lease(self, chunk_id: str) -> None:
        """Keeps it from eviction for a while: somebody was told where it is."""
        with self._lock:
            self._leases.renew(chunk_id)

    def leased(self, chunk_id: str) -> bool:
        with self._lock:
            return chunk_id in self._leases

    def pin(self, chunk_ids: frozenset[str]) -> None:
        """These, and no others, are never evicted."""
        with self._lock:
            self._pins = chunk_ids

    def check_invariants(self, verify: bool = True) -> None:
        """The index is what a scan finds, every counter is what it says; ``verify``: and every file is
        whole."""
        with self._lock:
            found = self._files.scan(primary_no_more=self._leaving)
            assert self._index == found, set(self._index.items()) ^ set(found.items())
            assert self._num_bytes == sum(c.size_bytes for c in found.values())
            assert self._reserved_bytes >= 0
            assert self._sorted is None or self._sorted == sorted(found)
            self._queue.check_invariants()
            copies = [c for c in found.values() if not c.primary]
            assert len(self._queue) == len(copies)
            assert all(c.chunk_id in self._queue for c in copies)
            assert self._queue.num_bytes == sum(c.size_bytes for c in copies)
            paths = {chunk_id: self.path_of(chunk_id) for chunk_id in found if verify}
        for chunk_id, path in paths.items():
            assert verify_chunk(path).header.chunk_id == chunk_id

    # ---- with the lock held

    def _unreserve(self, num_bytes: int) -> None:
        with self._lock:
            self._reserved_bytes -= num_bytes

    def _make_room(self, num_bytes: int, tenant: str | None, besides: str = "") -> bool:
        if not self.capacity_bytes:
            return True
        short = self._num_bytes + self._reserved_bytes + num_bytes - self.capacity_bytes
        return short <= 0 or self._evict(short, tenant, besides)

    def _evict(self, num_bytes: int, tenant: str | None = None, besides: str = "") -> bool:
        """``tenant``: as in ``with_room``."""

        def keep(chunk_id: str) -> bool:
            return chunk_id == besides or chunk_id in self._pins or chunk_id in self._leases

        capacity_bytes = self.capacity_bytes or self._queue.num_bytes
        victims = self._queue.victims(num_bytes, keep, tenant or "", capacity_bytes)
        if not victims and tenant is None:
            victims = self._queue.victims(num_bytes, keep)
        for chunk_id in victims:
            self._drop(chunk_id)
        self.num_evictions += len(victims)
        return bool(victims)

    def _shrink(self) -> None:
        """To the capacity, or as near as may be."""
        while (
            self.capacity_bytes and (over := self._num_bytes + self._reserved_bytes - self.capacity_bytes) > 0
        ):
            if not self._evict(over) and not self._evict(1):
                return

    def _drop(self, chunk_id: str) -> bool:
        self.leave(chunk_id)
        removed = self._files.blobs(self._index[chunk_id].primary).delete(blob_of(chunk_id))
        self._note(chunk_id, None)
        return removed

    def check_again(self, chunk_id: str) -> None:
        """Makes the index agree with the disk, however far a change of the chunk came."""
        with self._lock:
            self._note(chunk_id, self._files.find(chunk_id, copies_only=chunk_id in self._leaving))

    def _note(self, chunk_id: str, copy: FileCopy | None) -> None:
        old = self._index.pop(chunk_id, None)
        self._num_bytes += (copy.size_bytes if copy else 0) - (old.size_bytes if old else 0)
        if copy is None or copy.primary:
            self._queue.remove(chunk_id)
        else:
            self._queue.admit(chunk_id, copy.size_bytes)
        if copy is not None:
            self._index[chunk_id] = copy
        else:
            self._layouts.pop(chunk_id, None)
            del self._uses[chunk_id]
        if (copy is None) != (old is None):
            self._sorted = None

    def _remember(self, chunk_id: str, stamp: Stamp, summary: ChunkSummary) -> None:
        with self._lock:
            self._layouts[chunk_id] = stamp, summary
            while len(self._layouts) > _MOST_KNOWN_LAYOUTS:
                self._layouts.popitem(last=False)

    def _stats_of(self, name: str, copies: list[FileCopy], pins: frozenset[str]) -> TierStats:
        pinned = sum(c.size_bytes for c in copies if c.chunk_id in pins)
        return TierStats(name, len(copies), sum(c.size_bytes for c in copies), self.capacity_bytes, pinned)
