"""Who may go next: a fixed number of lanes, the most urgent of those that wait first; and one at a time per chunk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count

Order = tuple[int, ...]


class Lanes:
    """A semaphore whose waiters are let in by their order, the smallest first."""

    def __init__(self, num_lanes: int) -> None:
        self._num_free = num_lanes
        self._waiting: list[tuple[Order, int, asyncio.Future[None]]] = []
        self._tickets = count()

    @asynccontextmanager
    async def lane(self, order: Order) -> AsyncGenerator[None, None]:
        await self._enter(order)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, order: Order) -> None:
        if self._num_free:
            self._num_free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (order, next(self._tickets), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # it was let in at the moment when it went away
            raise

    def _leave(self) -> None:
        while self._waiting:
            _, _, turn = heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._num_free += 1


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
