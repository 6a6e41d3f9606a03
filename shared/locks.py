"""One at a time per key: per chunk, per document."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager


class Locks:
    """A lock per key, for as long as somebody holds it or waits; whoever came first goes first."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, asyncio.Lock] = {}
        self._num_users: dict[Hashable, int] = {}

    def __len__(self) -> int:
        """Keys that somebody holds or waits for."""
        return len(self._locks)

    @asynccontextmanager
    async def hold(self, *key: Hashable) -> AsyncGenerator[None, None]:
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._num_users[key] = self._num_users.get(key, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._num_users[key] -= 1
            if not self._num_users[key]:
                del self._locks[key], self._num_users[key]
