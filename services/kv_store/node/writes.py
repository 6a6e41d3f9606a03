"""Makes chunks durable: through to the object store, or on the disk first, to be brought there later.

What is deleted or replaced goes from the disk first and from memory then, for copies go the other way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from services.kv_store.blobs.protocol import Blobs
from services.kv_store.config import KvStoreConfig
from services.kv_store.fetching.fetches import LINGER_S, Fetches
from services.kv_store.node.uploader import Sleep, Uploader
from services.kv_store.tiers.chunk_files import sealed, verified
from services.kv_store.tiers.chunk_names import blob_of
from services.kv_store.tiers.local import LocalTier
from services.kv_store.tiers.object_chunks import is_newer_object
from services.kv_store.tiers.promotion import Promotion
from shared.errors import CorruptData, KvquiltError, NewerFormat, NotFound
from shared.kv_format import ChunkSummary, SealKeys
from shared.locks import Locks

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

_NUM_THREADS = 8


class WritableTiers:
    """A node's tiers as its writers see them: one writer per chunk at a time. A file of a newer format is
    never replaced. They live in one event loop; what blocks runs in threads of their own.

    ``keys``: what is taken over is sealed with the current one, and what any seals is believed; None: nothing
    is sealed, and everything believed."""

    def __init__(
        self,
        disk: LocalTier,
        memory: LocalTier | None,
        objects: Blobs | None,
        config: KvStoreConfig,
        sleep: Sleep,
        keys: SealKeys | None = None,
    ) -> None:
        self.keys = keys
        self.disk, self.memory, self.objects = disk, memory, objects
        self.own = [t for t in (memory, disk) if t is not None]  # in the order of reading
        self.counters: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "kv-work")
        self._openers = ThreadPoolExecutor(2, "kv-open")
        self._fetches = Fetches(
            self.own[::-1], objects, config.fetch, config.prefer_peers, self.counters, self._threads, keys
        )
        self._promotion = None if memory is None else Promotion(disk, memory, self.counters, self._threads)
        self._locks = Locks()
        self._uploader = Uploader(self._upload, sleep=sleep)
        self._leaving: dict[str, asyncio.TimerHandle] = {}

    async def exists(self, chunk_id: str) -> bool:
        """Whether ``put`` would find it stored already; it is durable then."""
        async with self._locks.hold(chunk_id):
            return await self._exists(chunk_id, write_back=False, uploaded=True)

    async def put(self, chunk_id: str, staged: Path, replace: bool = False, write_back: bool = False) -> bool:
        """Takes over a file of ``disk.staging``; returns whether the chunk was stored already (unless
        ``replace``, the new file is dropped). When it returns the chunk is durable: in the object store if
        there is one, else (or ``write_back``) on the disk.

        Raises:
            CorruptData: it is not a whole chunk file, or another chunk's.
            StorageFull, Unavailable: not stored.
        """
        try:
            async with self._locks.hold(chunk_id):
                copied = self.objects is None and any(tier.find(chunk_id) for tier in self.own)
                durable = await self._exists(chunk_id, write_back, uploaded=not write_back and not replace)
                newer = await self.in_threads(
                    self._is_newer, chunk_id, durable and replace and not write_back
                )
                if not newer and (not durable or replace):
                    await self._store(chunk_id, staged, write_back)
                return durable or copied or newer
        finally:
            await self.in_threads(self.disk.staging.discard, staged)

    async def put_copy(self, chunk_id: str, path: Path) -> None:
        """Stores the bytes of a good copy as if they were new."""
        staged = await self.in_threads(self.disk.staging.copy_of, path)
        try:
            async with self._locks.hold(chunk_id):
                await self._store(chunk_id, staged, write_back=False)
        finally:
            await self.in_threads(self.disk.staging.discard, staged)

    async def delete(self, chunk_id: str) -> bool:
        """From this node's tiers; whether it was here. Nothing that this node was bringing to the object
        store arrives there after this."""
        async with self._locks.hold(chunk_id):
            self._fetches.drop(chunk_id)
            return any([await self.in_threads(tier.remove, chunk_id) for tier in self.own[::-1]])

    async def alone(self, chunk_id: str, call: Callable[[], ResultT]) -> ResultT:
        """``call`` in a thread, while nobody writes the chunk or brings it here."""
        async with self._locks.hold(chunk_id):
            self._fetches.drop(chunk_id)
            return await self.in_threads(call)

    def upload_pending(self) -> None:
        """Goes on bringing to the object store what is only here: for the start of an agent, and whenever."""
        if self.objects is not None:
            self._uploader.add(c.chunk_id for c in self.disk.copies(primary_only=True))

    async def uploaded(self) -> None:
        """Returns once nothing waits for the object store."""
        await self._uploader.idle()

    async def close(self) -> None:
        """Ends what runs in the background. What was acknowledged is durable already."""
        await asyncio.gather(self._uploader.close(), self._fetches.close())
        for chunk_id in list(self._leaving):
            self._leave(chunk_id)
        if self._promotion is not None:
            await self._promotion.close()
        for pool in (self._openers, self._threads):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _exists(self, chunk_id: str, write_back: bool, uploaded: bool) -> bool:
        """Whether it is durable somewhere. ``uploaded``: what waits for the object store is brought there
        first."""
        copy = self.disk.find(chunk_id)
        if copy is not None and copy.primary:
            await self.in_threads(self.disk.commit, chunk_id)
            if uploaded:
                await self._upload_locked(chunk_id)
            return True
        if self.objects is None or chunk_id in self._fetches.damaged_objects:
            return False
        try:
            return await self.in_threads(self.objects.stat, blob_of(chunk_id)) is not None
        except KvquiltError:
            if write_back:  # it can be stored here, and the object store be asked later
                return False
            raise

    async def _store(self, chunk_id: str, staged: Path, write_back: bool) -> None:
        summary = await self.in_threads(sealed, staged, chunk_id, self.keys)
        self._fetches.drop(chunk_id)
        await self.in_threads(self._place, chunk_id, staged, summary, write_back)
        if write_back and self.objects is not None:
            self._uploader.add([chunk_id])
        elif self.objects is not None:
            self.counters["uploads"] += 1
        self._fetches.damaged_objects.discard(chunk_id)

    def _place(self, chunk_id: str, staged: Path, summary: ChunkSummary, write_back: bool) -> None:
        if self.objects is None or write_back:
            keep = partial(self.disk.keep, chunk_id, staged, summary, truth=True)
            self.disk.with_room(summary.size_bytes, keep)
        else:
            self.objects.put_file(blob_of(chunk_id), staged)
            try:
                self.disk.remove(chunk_id)  # it may be kept there, which a copy does not replace
                if staged.exists():  # whoever brought it still waits
                    self.disk.keep(chunk_id, staged, summary)
            except KvquiltError as error:  # a copy is not worth an error
                log.warning("no copy of chunk %s stays here: %s", chunk_id, error.detail)
        if self.memory is not None:
            self.memory.remove(chunk_id)

    async def _upload(self, chunk_id: str) -> None:
        async with self._locks.hold(chunk_id):
            await self._upload_locked(chunk_id)

    async def _upload_locked(self, chunk_id: str) -> None:
        """Brings what is kept here to the object store; nothing if it is not here any more."""
        copy = self.disk.find(chunk_id)
        if self.objects is None or copy is None or not copy.primary:
            return
        version, path = self.disk.version(chunk_id), self.disk.path_of(chunk_id)
        try:
            await self.in_threads(verified, path, chunk_id, self.keys)
            if not await self.in_threads(is_newer_object, self.objects, chunk_id):
                await self.in_threads(self.objects.put_file, blob_of(chunk_id), path)
                self.counters["uploads"] += 1
        except NewerFormat as error:
            log.warning("what waits for the object store stays here: %s", error.detail)
            return
        except CorruptData as error:
            log.error("what waited for the object store is damaged: %s", error.detail)
            await self.in_threads(self.disk.remove, chunk_id)
        except (NotFound, FileNotFoundError):
            pass  # demoting finds out
        await self.in_threads(self.disk.demote, chunk_id, version)
        if chunk_id in self._leaving:
            self._leaving.pop(chunk_id).cancel()
        self._leaving[chunk_id] = asyncio.get_running_loop().call_later(LINGER_S, self._leave, chunk_id)

    def _leave(self, chunk_id: str) -> None:
        self._leaving.pop(chunk_id).cancel()
        with suppress(KvquiltError):
            self.disk.leave(chunk_id)

    def _is_newer(self, chunk_id: str, look_at_object: bool) -> bool:
        """Uploading looks at the object itself."""
        if any(tier.is_newer(chunk_id) for tier in self.own):
            return True
        return look_at_object and self.objects is not None and is_newer_object(self.objects, chunk_id)

    async def in_threads(self, call: Callable[..., ResultT], *args: object) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)
