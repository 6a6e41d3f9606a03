"""Keeps what is on its way to this node: one fetch per chunk, however many ask for it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path

from services.kv_store.blobs.protocol import Blobs, Link
from services.kv_store.fetching.config import FetchConfig
from services.kv_store.fetching.fetch import Fetch, FetchRoom
from services.kv_store.fetching.reading_threads import ReadingThreads
from services.kv_store.fetching.sources import ObjectSource, PeerSearch, Source
from services.kv_store.tiers.chunk_names import blob_of
from services.kv_store.tiers.local import LocalTier
from shared.errors import KvquiltError
from shared.kv_format import SealKeys
from shared.kv_types import OpenedChunk, RemoteFile
from shared.streams import cancelled
from shared.tracing.names import NUM_BYTES, SOURCE
from shared.tracing.spans import span

log = logging.getLogger(__name__)

LINGER_S = 3.0
_MOST_KNOWN_MISSES = 100_000


class Fetches:
    """From the object store first and from other nodes then, or the other way round; the first that has the
    chunk, and whole."""

    def __init__(
        self,
        tiers: Sequence[LocalTier],
        objects: Blobs | None,
        config: FetchConfig,
        prefer_peers: bool,
        counters: Counter[str],
        threads: Executor,
        keys: SealKeys | None = None,
    ) -> None:
        """``tiers``: where a chunk may go, the best first. ``keys``: of the seals that are believed."""
        self.damaged_objects: set[str] = set()
        """Chunks whose object turned out to be damaged: not stored, whatever the object store says."""
        self._objects, self._config, self._prefer_peers, self._counters = (
            objects,
            config,
            prefer_peers,
            counters,
        )
        self._threads = threads
        self._readers = ReadingThreads(config.concurrency, "kv-fetch")
        self._room = FetchRoom(
            tiers,
            config,
            self._readers,
            threads,
            counters,
            self._linger,
            self._take_in,
            self._note_damage,
            keys,
        )
        self._running: dict[str, tuple[Fetch, asyncio.Task[bool]]] = {}
        self._tasks: set[asyncio.Task[bool]] = set()  # of these, and of what was dropped and has not ended
        self._lingering: dict[Path, asyncio.TimerHandle] = {}
        self._unplaced: dict[
            str, OpenedChunk
        ] = {}  # whole, but no tier had room: they are where they were staged, for a while
        self._misses: OrderedDict[str, int] = OrderedDict()  # of chunks without a copy here, the latest last

    def __contains__(self, chunk_id: str) -> bool:
        return chunk_id in self._running or chunk_id in self._unplaced

    async def open(self, chunk_id: str, peers: PeerSearch) -> OpenedChunk | None:
        """Returns where the chunk can be read, as soon as its frame is there; None: it cannot be had soon."""
        if chunk_id in self._unplaced:
            return self._unplaced[chunk_id]
        self._counters["coalesced"] += chunk_id in self._running
        fetch, _ = self.start(chunk_id, peers, urgent=True)
        try:
            async with asyncio.timeout(self._config.timeout_s):
                return await fetch.framed()
        except TimeoutError:
            return None

    def remote(self, chunk_id: str) -> OpenedChunk | None:
        """Returns where a reader receives the chunk from the object store itself; None: it needs a copy here,
        or is on its way already. Asks nobody."""
        link = self.link(chunk_id)
        self._count_miss(chunk_id)
        if link is None:
            return None
        self._counters["direct_opens"] += 1
        return OpenedChunk(chunk_id, True, tier="objects", remote=RemoteFile(link.url, link.ca_file))

    def link(self, chunk_id: str) -> Link | None:
        """To the chunk's object, if whoever opens the chunk next is to read it there."""
        if self._objects is None or self._prefer_peers or chunk_id in self:
            return None
        copied = self._misses.get(chunk_id, 0) + 1 >= self._config.copy_from_miss
        if copied or chunk_id in self.damaged_objects:
            return None
        with suppress(KvquiltError):
            return self._objects.link(blob_of(chunk_id))
        return None

    def _count_miss(self, chunk_id: str) -> None:
        count = self._misses.pop(chunk_id, 0) + 1
        if count < self._config.copy_from_miss:
            self._misses[chunk_id] = count
            if len(self._misses) > _MOST_KNOWN_MISSES:
                self._misses.popitem(last=False)

    def start(
        self, chunk_id: str, peers: PeerSearch, urgent: bool = False
    ) -> tuple[Fetch, asyncio.Task[bool]]:
        """The fetch that is under way, or a new one."""
        if chunk_id not in self._running:
            fetch = Fetch(self._room, chunk_id, peers.ctx.tenant)
            task = asyncio.create_task(self._fetched(fetch, peers))
            self._running[chunk_id] = fetch, task
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._ended(chunk_id, task))
        fetch, task = self._running[chunk_id]
        if urgent:
            fetch.hurry()
        return fetch, task

    async def _fetched(self, fetch: Fetch, peers: PeerSearch) -> bool:
        """In the trace of whoever asked first."""
        with span(peers.ctx, "fetch") as stage:
            in_tier = await fetch.run(self._sources(fetch.chunk_id, peers))
            if fetch.source:
                stage.set({SOURCE: fetch.source, NUM_BYTES: fetch.size_bytes})
        return in_tier

    def drop(self, chunk_id: str) -> None:
        """Drops what comes from now on: the chunk is gone."""
        fetch, _ = self._running.pop(chunk_id, (None, None))
        if fetch is not None:
            fetch.drop()
        self._unplaced.pop(chunk_id, None)

    async def close(self) -> None:
        for chunk_id in [*self._running, *self._unplaced]:
            self.drop(chunk_id)
        await cancelled(list(self._tasks))
        for path in list(self._lingering):
            self._end_lingering(path)
        self._readers.close()

    async def _sources(self, chunk_id: str, peers: PeerSearch) -> AsyncIterator[Source]:
        if self._prefer_peers or self._objects is None:
            for source in await peers.sources(chunk_id):
                yield source
        if self._objects is not None:
            yield ObjectSource(self._objects, chunk_id, self._threads)
            if not self._prefer_peers:
                for source in await peers.sources(chunk_id):
                    yield source

    def _ended(self, chunk_id: str, task: asyncio.Task[bool]) -> None:
        self._tasks.discard(task)
        if self._running.get(chunk_id, (None, None))[1] is task:
            del self._running[chunk_id]
        if not task.cancelled() and task.exception() is not None:
            log.error("fetching chunk %s failed", chunk_id, exc_info=task.exception())

    def _note_damage(self, kind: str, chunk_id: str) -> None:
        self._counters[f"damaged_{kind}s"] += 1
        if kind == "object":
            self.damaged_objects.add(chunk_id)

    def _linger(self, path: Path) -> None:
        self._lingering[path] = asyncio.get_running_loop().call_later(LINGER_S, self._end_lingering, path)

    def _end_lingering(self, path: Path) -> None:
        self._lingering.pop(path).cancel()
        with suppress(OSError):
            path.unlink(missing_ok=True)
        for chunk_id in [c for c, opened in self._unplaced.items() if opened.path == str(path)]:
            del self._unplaced[chunk_id]

    def _take_in(self, opened: OpenedChunk) -> None:
        self._unplaced[opened.chunk_id] = opened
