"""One at a time per chunk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Locks:
    """A lock per name, for as long as somebody holds it or waits."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._num_users: dict[str, int] = {}

    @property
    def num_names(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncGenerator[None, None]:
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._num_users[name] = self._num_users.get(name, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._num_users[name] -= 1
            if not self._num_users[name]:
                del self._locks[name], self._num_users[name]
