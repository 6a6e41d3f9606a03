"""Brings what is durable on this node to the object store, in the background, however long that is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from shared.errors import KvquiltError
from shared.streams import cancelled

log = logging.getLogger(__name__)

Sleep = Callable[[float], Awaitable[None]]

_NUM_WORKERS = 2
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.5, 60.0


class Uploader:
    """``upload`` is called for every chunk until it returns; after a failure the worker that met it rests,
    twice as long each time. There is a task only while there is work."""

    def __init__(
        self,
        upload: Callable[[str], Awaitable[None]],
        first_delay_s: float = _FIRST_DELAY_S,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._upload, self._first_delay_s, self._sleep = upload, first_delay_s, sleep
        self._waiting: dict[str, None] = {}
        self._workers: set[asyncio.Task[None]] = set()

    def add(self, chunk_ids: Iterable[str]) -> None:
        self._waiting.update(dict.fromkeys(chunk_ids))
        for _ in range(min(len(self._waiting), _NUM_WORKERS - len(self._workers))):
            worker = asyncio.get_running_loop().create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def idle(self) -> None:
        """Returns once everything that was added is uploaded."""
        while self._workers:
            await asyncio.gather(*self._workers)

    async def close(self) -> None:
        await cancelled(self._workers)

    async def _work(self) -> None:
        delay_s = self._first_delay_s
        while self._waiting:
            chunk_id = next(iter(self._waiting))
            del self._waiting[chunk_id]
            try:
                await self._upload(chunk_id)
                delay_s = self._first_delay_s
            except KvquiltError as error:
                log.warning("chunk %s waits for the object store: %s", chunk_id, error.detail)
                self._waiting[chunk_id] = None
                await self._sleep(delay_s)
                delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
