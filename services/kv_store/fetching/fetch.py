"""Brings one chunk to this node while its readers are reading it already.

    end of the file ──▶ frame is there: ``framed`` tells readers the staged file and its progress
    parts, in the order of layers, several at a time ──▶ verified as they come, layers are marked then
    whole ──▶ takes its place in a tier

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
from services.kv_store.fetching.allocation import Allocation, allocate
from services.kv_store.fetching.config import FetchConfig
from services.kv_store.fetching.parts import RETRYABLE, TRIES, PartReading
from services.kv_store.fetching.reading_threads import ReadingThreads
from services.kv_store.fetching.sources import Source
from services.kv_store.fetching.verification import ArrivingPart, parts_of, sections_of
from services.kv_store.tiers.local import LocalTier
from shared.errors import CorruptData, KvquiltError, NewerFormat, NotFound
from shared.kv_format import ChunkSummary, Frame, SealKeys, reading_frame
from shared.kv_format.progress import ProgressWriter
from shared.kv_types import OpenedChunk

log = logging.getLogger(__name__)
_SOURCES = {"object": "objects", "peer": "peer"}
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class FetchRoom:
    """Parts that all fetches of a node share. ``tiers``: where a chunk may go, the best first. ``linger``:
    called with a file whose name must stay for a while, for readers were told of it. ``unplaced``: with a
    chunk that no tier has room for after all, so that its staged file is all there is. ``damaged``: told what
    kind of source had a copy that is none. ``keys``: of the seals that are believed; None: all are."""

    tiers: Sequence[LocalTier]
    config: FetchConfig
    readers: ReadingThreads
    threads: Executor
    counters: Counter[str]
    linger: Callable[[Path], None]
    unplaced: Callable[[OpenedChunk], None]
    damaged: Callable[[str, str], None]
    keys: SealKeys | None = None


class Fetch:
    """One per chunk, however many ask for it. It goes on when all of them have gone away."""

    def __init__(self, room: FetchRoom, chunk_id: str, tenant: str) -> None:
        """``tenant``: who asked for it first."""
        self.chunk_id, self._tenant = chunk_id, tenant
        self.urgent = False
        """Somebody waits for it: its parts come before those of others. ``hurry`` sets it."""
        self.unwanted = False
        """Set when the chunk is deleted or replaced: what comes is dropped."""
        self.source, self.size_bytes = "", 0
        """Where it is from, and what it has."""
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
        """Returns where the chunk can be read, as soon as its frame is there; None: it cannot be had."""
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
        frame, tail = found
        summary, size = frame.summary, frame.size_bytes
        self.source, self.size_bytes = _SOURCES.get(source.kind, ""), size
        room = await self._in_thread(
            partial(allocate, self._room.tiers, size, tail, self._tenant), unwanted=Allocation.discard
        )
        tier, file = room.tier, room.file
        try:
            await self._fill(source, tier, file, frame, tail)
            self._room.counters[f"{source.kind}_fetches"] += 1  # before others can see it in the tier
            self._room.counters[f"{source.kind}_bytes"] += size
            opened = await self._in_thread(partial(self._keep, room, summary))
            self._check_wanted()
        except BaseException:
            tier.staging.discard(file.path)
            raise
        finally:
            room.release()
        if opened.path == str(file.path):
            self._room.unplaced(opened)
        if self._framed.done() or opened.path == str(file.path):
            self._room.linger(file.path)
        self._tell(opened)
        return True

    async def _end_of(self, source: Source) -> tuple[Frame, bytes] | None:
        """Returns the frame, and the bytes that say it; None: the source does not have the chunk."""
        steps = reading_frame(self.chunk_id, keys=self._room.keys)
        length = next(steps)
        while True:
            found = await self._patiently(partial(source.end, length))
            if found is None:
                return None
            try:
                length = steps.send(found)
            except StopIteration as done:
                frame, tail = done.value
                return frame, tail
            except CorruptData:
                self._room.damaged(source.kind, self.chunk_id)
                raise

    async def _fill(
        self, source: Source, tier: LocalTier, file: StagedFile, frame: Frame, tail: bytes
    ) -> None:
        """Returns once every byte is in the file and verified."""
        progress = ProgressWriter(tier.staging.new(), len(frame.summary.layers))
        whole = False
        try:
            tail_start = frame.size_bytes - len(tail)
            sections = sections_of(frame)
            missing = [section for section in sections if section.start < tail_start]
            if there := sections[len(missing) :]:
                self._check(
                    source, ArrivingPart(there, self.chunk_id, progress.layer_arrived), tail, tail_start
                )
            if missing:
                progress.frame_arrived()
                self._tell(self._opened(tier, file, frame.summary, str(progress.path), self.source))
                parts = parts_of(missing, self._room.config.part_bytes)
                arriving = [ArrivingPart(part, self.chunk_id, progress.layer_arrived) for part in parts]
                await self._read_parts(source, file, arriving)
            whole = True
        finally:
            told = self._framed.done()
            progress.close(whole, keep=whole and told)
            if whole and told:
                self._room.linger(progress.path)

    def _check(self, source: Source, part: ArrivingPart, tail: bytes, tail_start: int) -> None:
        """Checks what came with the frame."""
        start, length = part.rest()
        try:
            part.arrived(start, tail[start - tail_start :][:length])
        except CorruptData:
            self._room.damaged(source.kind, self.chunk_id)
            raise

    async def _read_parts(self, source: Source, file: StagedFile, parts: Sequence[ArrivingPart]) -> None:
        def read(number: int, moved: Callable[[], None]) -> None:
            part = parts[number]

            def write(offset: int, piece: bytes | memoryview) -> None:
                file.write(offset, piece)
                part.arrived(offset, piece)
                moved()

            source.read(*part.rest(), write)
            part.check_whole()

        self._reading = PartReading(self._room.readers, len(parts), read)
        self._reading.start(self.urgent)
        try:
            await self._reading.finished(self._room.config.timeout_s)
        except CorruptData:
            if any(part.is_damaged for part in parts):
                self._room.damaged(source.kind, self.chunk_id)
            raise
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

    def _keep(self, room: Allocation, summary: ChunkSummary) -> OpenedChunk:
        """Returns where it can be read from now on: in the tier, or, if that has no room any more, in the
        staged file."""
        self._check_wanted()
        tier, file, told = room.tier, room.file, self._framed.done()
        staged = tier.staging.second_name(file.path) if told else file.path
        try:
            kept = tier.keep(
                self.chunk_id,
                staged,
                summary,
                tenant=self._tenant,
                reservation=room.reservation,
                unless=lambda: self.unwanted,
            )
            opened = tier.open(self.chunk_id, self._tenant) if kept else None
        finally:
            if told:
                tier.staging.discard(staged)
        return opened or self._opened(tier, file, summary)

    def _opened(
        self,
        tier: LocalTier,
        file: StagedFile,
        summary: ChunkSummary,
        progress: str = "",
        source: str = "",
    ) -> OpenedChunk:
        return OpenedChunk(
            self.chunk_id,
            True,
            str(file.path),
            summary.size_bytes,
            summary.layers,
            progress,
            tier.name,
            source=source,
        )

    def _check_wanted(self) -> None:
        if self.unwanted:
            raise NotFound(f"chunk {self.chunk_id}: deleted or replaced meanwhile")

    def _tell(self, opened: OpenedChunk | None) -> None:
        if not self._framed.done():
            self._framed.set_result(opened)

    async def _in_thread(
        self, call: Callable[[], ResultT], unwanted: Callable[[ResultT], object] | None = None
    ) -> ResultT:
        """Calls ``call`` in a thread. Cancelled, it waits for the thread, so that no file is staged after it,
        and gives the result to ``unwanted``."""
        running = asyncio.get_running_loop().run_in_executor(self._room.threads, call)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            if not running.cancelled() and running.exception() is None and unwanted is not None:
                unwanted(running.result())
            raise
