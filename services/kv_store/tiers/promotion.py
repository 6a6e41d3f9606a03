"""Copies chunks that are used again to memory, in the background."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from concurrent.futures import Executor

from services.kv_store.tiers.chunk_files import verified
from services.kv_store.tiers.local import LocalTier
from shared.errors import KvquiltError
from shared.streams import cancelled

log = logging.getLogger(__name__)

_USES_OF_THE_HOT = 2


class Promotion:
    def __init__(self, disk: LocalTier, memory: LocalTier, counters: Counter[str], threads: Executor) -> None:
        self._disk, self._memory, self._counters, self._threads = disk, memory, counters, threads
        self._running: dict[str, asyncio.Task[None]] = {}

    def used(self, chunk_id: str, tenant: str) -> None:
        """``tenant`` opened a chunk that is, or soon will be, on the disk."""
        if chunk_id in self._running or self._memory.find(chunk_id) is not None:
            return
        if self._disk.num_uses(chunk_id) >= _USES_OF_THE_HOT:
            task = self._running[chunk_id] = asyncio.create_task(self._promote(chunk_id, tenant))
            task.add_done_callback(lambda _: self._running.pop(chunk_id))

    async def idle(self) -> None:
        """Returns once nothing is on its way."""
        await asyncio.gather(*self._running.values())

    async def close(self) -> None:
        await cancelled(self._running.values())

    async def _promote(self, chunk_id: str, tenant: str) -> None:
        try:
            if await asyncio.get_running_loop().run_in_executor(self._threads, self._copy, chunk_id, tenant):
                self._counters["promotions"] += 1
        except (KvquiltError, OSError) as error:
            log.info("chunk %s stays on the disk: %r", chunk_id, error)

    def _copy(self, chunk_id: str, tenant: str) -> bool:
        """False: memory has no room for the tenant, or the chunk changed meanwhile."""
        version, path = self._disk.version(chunk_id), self._disk.path_of(chunk_id)
        reservation = self._memory.reserve(path.stat().st_size, tenant)
        if reservation is None:
            return False
        try:
            staged = self._memory.staging.copy_of(path)
            try:
                return self._memory.keep(
                    chunk_id,
                    staged,
                    verified(staged, chunk_id),
                    tenant=tenant,
                    reservation=reservation,
                    unless=lambda: self._disk.version(chunk_id) != version,
                )
            finally:
                self._memory.staging.discard(staged)
        finally:
            reservation.release()
