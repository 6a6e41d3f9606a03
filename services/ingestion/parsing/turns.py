"""Shares places among tenants: of those that wait, whoever has the fewest is next, then who waits longest."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Turns:
    """``num``: places. For one event loop."""

    def __init__(self, num: int) -> None:
        self._num = num
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # whoever waits longest first

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncGenerator[None, None]:
        """A place while the context is open."""
        await self._take(tenant)
        try:
            yield
        finally:
            self._free(tenant)

    def check_invariants(self) -> None:
        assert sum(self._held.values()) <= self._num
        assert all(self._held.values()), "who holds nothing is forgotten"
        assert all(self._waiting.values()), "who does not wait is forgotten"
        assert not self._waiting or sum(self._held.values()) == self._num, "a place is free"

    async def _take(self, tenant: str) -> None:
        if self._held.total() < self._num:
            self._held[tenant] += 1
            return
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(given)
        try:
            await given
        except asyncio.CancelledError:
            if given.cancelled():
                self._leave(tenant, given)
            else:
                self._free(tenant)
            raise

    def _free(self, tenant: str) -> None:
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        if self._waiting:
            following = min(self._waiting, key=lambda name: self._held[name])
            given = self._waiting.pop(following)
            given.popleft().set_result(None)
            self._held[following] += 1
            if given:
                self._waiting[following] = given  # behind the others

    def _leave(self, tenant: str, given: asyncio.Future[None]) -> None:
        self._waiting[tenant].remove(given)
        if not self._waiting[tenant]:
            del self._waiting[tenant]
