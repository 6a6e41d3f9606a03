"""Brings one chunk to this node while its readers are reading it already.

    end of the file ──▶ frame is there: ``framed`` tells readers the staged file and its progress
    parts, in the order of layers, several at a time ──▶ layers are marked as they come
    whole ──▶ verified ──▶ takes its place in a tier

Readers keep their descriptors, so it is nothing to them when the staged name goes. It stays for a while, with
its progress, for those who were told of it and have not opened it yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from services.kv_store.blobs.staging import StagedFile
from services.kv_store.fetching.parts import RETRYABLE, TRIES, Arrivals, Part, PartReading, parts_of
from services.kv_store.fetching.reading_threads import ReadingThreads
from services.kv_store.fetching.sources import Source
from services.kv_store.tiers.chunk_files import verified
from services.kv_store.tiers.local import LocalTier, Reservation
from shared.errors import CorruptData, KvquiltError, NewerFormat, NotFound, StorageFull
from shared.kv_format import TAIL_GUESS_BYTES, ChunkSummary, ShortTail, summary_of_tail
from shared.kv_format.progress import ProgressWriter
from shared.kv_types import OpenedChunk

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")
Sleep = Callable[[float], Awaitable[None]]
Allocation = tuple[LocalTier, Reservation, StagedFile]

_LAST = (2,)
_READERS_FIRST_S = 0.1


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """``concurrency``: ranged reads at a time, of all chunks together. ``part_bytes``: of one of them; a
    layer can be used as soon as its last byte is there, so large parts keep nobody waiting, and fewer
    requests cost less. ``timeout_s``: the longest that a reader waits for a chunk's frame, and for more bytes
    while parts are being read; after that the chunk counts as absent."""

    concurrency: int = 8
    part_bytes: int = 16 << 20
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("concurrency", "part_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s: must be above 0, got {self.timeout_s}")


@dataclass(frozen=True, slots=True)
class FetchRoom:
    """What all fetches of a node share. ``tiers``: where a chunk may go, the best first. ``linger``: called
    with a file whose name must stay for a while, for readers were told of it. ``homeless``: with a chunk that
    no tier has room for after all, so that its staged file is all there is. ``damaged``: told what kind of
    source had a copy that is none. ``sleep``: how one that lets others go first waits."""

    tiers: Sequence[LocalTier]
    config: FetchConfig
    readers: ReadingThreads
    threads: Executor
    counters: Counter[str]
    linger: Callable[[Path], None]
    homeless: Callable[[OpenedChunk], None]
    damaged: Callable[[str, str], None]
    sleep: Sleep = asyncio.sleep


class Fetch:
    """One per chunk, however many ask for it. It goes on when all of them have gone away."""

    def __init__(self, room: FetchRoom, chunk_id: str) -> None:
        self.chunk_id = chunk_id
        self.urgent = False
        """Somebody waits for it: its parts come before those of others. ``hurry`` sets it."""
        self.unwanted = False
        """Set when the chunk is deleted or replaced: what comes is dropped."""
        self._room = room
        self._reading: PartReading | None = None
        self._framed: asyncio.Future[OpenedChunk | None] = asyncio.get_running_loop().create_future()

    def hurry(self) -> None:
        """Somebody waits for it now."""
        if not self.urgent:
            self.urgent = True
            if self._reading is not None:
                self._reading.start(urgent=True)

    def drop(self) -> None:
        """The chunk was deleted or replaced: what comes is of no use any more."""
        self.unwanted = True
        if self._reading is not None:
            self._reading.give_up()

    async def framed(self) -> OpenedChunk | None:
        """Where the chunk can be read, as soon as its frame is there; None: it cannot be had."""
        return await asyncio.shield(self._framed)

    async def run(self, sources: AsyncIterator[Source]) -> bool:
        """Whether the chunk is in a tier now."""
        try:
            async for source in sources:
                if self._framed.done():  # by a source that failed later
                    self._framed = asyncio.get_running_loop().create_future()
                try:
                    if await self._from(source):
                        return True
                except (KvquiltError, TimeoutError, OSError) as error:
                    log.warning("chunk %s cannot be fetched (%s): %r", self.chunk_id, source.kind, error)
                    self._room.counters["failed_fetches"] += 1
                    if isinstance(error, NewerFormat):
                        return False  # wherever it is
                if self.unwanted:
                    return False
            return False
        finally:
            self._tell(None)

    async def _from(self, source: Source) -> bool:
        found = await self._end_of(source)
        if found is None:
            return False
        summary, tail = found
        size = summary.size_bytes
        tier, reservation, file = await self._allocated(size, tail)
        try:
            await self._fill(source, tier, file, summary, tail)
            self._room.counters[f"{source.kind}_fetches"] += 1  # before others can see it in the tier
            self._room.counters[f"{source.kind}_bytes"] += size
            opened = await self._in_thread(self._keep, tier, reservation, file, summary)
            self._check_wanted()
        except BaseException:
            tier.staging.discard(file.path)
            raise
        finally:
            file.close()
            reservation.release()
        if opened.path == str(file.path):
            self._room.homeless(opened)
        if self._framed.done() or opened.path == str(file.path):
            self._room.linger(file.path)
        self._tell(opened)
        return True

    async def _allocated(self, size: int, tail: bytes) -> Allocation:
        """``_allocate``, and nothing is left of it if nobody waits for it any more."""
        allocating = asyncio.ensure_future(self._in_thread(self._allocate, size, tail))
        try:
            return await asyncio.shield(allocating)
        except asyncio.CancelledError:
            await asyncio.wait([allocating])
            _discard(allocating)
            raise

    def _allocate(self, size: int, tail: bytes) -> Allocation:
        """A file with room for the chunk, its end in place.

        Raises:
            StorageFull: no tier has room.
        """
        for tier in self._room.tiers:
            reservation = tier.reserve(size)
            if reservation is not None:
                try:
                    file = tier.allocate(size)
                    file.write(size - len(tail), tail)
                    return tier, reservation, file
                except BaseException as error:
                    reservation.release()
                    if not isinstance(error, StorageFull):
                        raise
        raise StorageFull("no room for a copy in any tier of this node")

    async def _end_of(self, source: Source) -> tuple[ChunkSummary, bytes] | None:
        """What the frame says, and the bytes that say it; None: the source does not have the chunk."""
        length = TAIL_GUESS_BYTES
        while True:
            found = await self._patiently(partial(source.end, length))
            if found is None:
                return None
            size, tail = found
            try:
                return summary_of_tail(tail, size), tail
            except ShortTail as error:
                if error.needed_bytes <= length:
                    raise CorruptData(f"chunk {self.chunk_id}: its end names more than there is") from None
                length = error.needed_bytes
            except CorruptData:
                self._room.damaged(source.kind, self.chunk_id)
                raise

    async def _fill(
        self, source: Source, tier: LocalTier, file: StagedFile, summary: ChunkSummary, tail: bytes
    ) -> None:
        progress: ProgressWriter | None = None
        whole = False
        try:
            tail_start = summary.size_bytes - len(tail)
            if parts := parts_of(tail_start, self._room.config.part_bytes):
                progress = ProgressWriter(tier.staging.new(), len(summary.layers))
                progress.frame_arrived()
                path = str(file.path)
                self._tell(
                    OpenedChunk(
                        self.chunk_id,
                        True,
                        path,
                        summary.size_bytes,
                        summary.layers,
                        str(progress.path),
                        tier.name,
                    )
                )
                await self._read_parts(source, file, summary.layers, parts, progress.layer_arrived)
            await self._verify(source, file)
            whole = True
        finally:
            if progress is not None:
                progress.close(whole, keep=whole)
                if whole:
                    self._room.linger(progress.path)

    async def _read_parts(
        self,
        source: Source,
        file: StagedFile,
        layers: Sequence[Part],
        parts: Sequence[Part],
        mark: Callable[[int], None],
    ) -> None:
        def read(start: int, length: int, arrived: Callable[[int], None]) -> None:
            def write(offset: int, piece: bytes | memoryview) -> None:
                file.write(offset, piece)
                arrived(offset + len(piece))

            source.read(start, length, write)

        self._reading = PartReading(self._room.readers, parts, read, Arrivals(parts, layers, mark))
        self._reading.start(self.urgent)
        try:
            await self._reading.finished(self._room.config.timeout_s)
        finally:
            self._reading = None
        self._check_wanted()

    async def _patiently(self, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """``call``, and once more if that fails or takes too long."""
        for tries_left in reversed(range(TRIES)):
            try:
                async with asyncio.timeout(self._room.config.timeout_s):
                    return await call()
            except RETRYABLE:
                if not tries_left:
                    raise
        raise AssertionError("unreachable")

    async def _verify(self, source: Source, file: StagedFile) -> None:
        """Readers verify what they read themselves, so this can wait until they have read it and nothing
        arrives for others."""
        if self.urgent:
            await self._room.sleep(_READERS_FIRST_S)
        try:
            verifying = self._room.readers.submit(_LAST, partial(verified, file.path, self.chunk_id))
            await asyncio.wrap_future(verifying)
        except CorruptData:
            self._room.damaged(source.kind, self.chunk_id)
            raise

    def _keep(
        self, tier: LocalTier, reservation: Reservation, file: StagedFile, summary: ChunkSummary
    ) -> OpenedChunk:
        """Where it can be read from now on: in the tier, or, if that has no room any more, in the staged
        file."""
        self._check_wanted()
        told = self._framed.done()
        staged = tier.staging.second_name(file.path) if told else file.path
        if tier.keep(self.chunk_id, staged, summary, reservation=reservation, unless=lambda: self.unwanted):
            kept = tier.open(self.chunk_id)
            if kept is not None:
                return kept
        if told:
            tier.staging.discard(staged)
        return self._opened(tier, file, summary)

    def _opened(
        self, tier: LocalTier, file: StagedFile, summary: ChunkSummary, progress: str = ""
    ) -> OpenedChunk:
        return OpenedChunk(
            self.chunk_id, True, str(file.path), summary.size_bytes, summary.layers, progress, tier.name
        )

    def _check_wanted(self) -> None:
        if self.unwanted:
            raise NotFound(f"chunk {self.chunk_id}: deleted or replaced meanwhile")

    def _tell(self, opened: OpenedChunk | None) -> None:
        if not self._framed.done():
            self._framed.set_result(opened)

    async def _in_thread(self, call: Callable[..., ResultT], *args: object) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._room.threads, call, *args)


def _discard(allocating: asyncio.Future[Allocation]) -> None:
    if not allocating.cancelled() and allocating.exception() is None:
        tier, reservation, file = allocating.result()
        file.close()
        reservation.release()
        tier.staging.discard(file.path)
