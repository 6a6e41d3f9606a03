"""Answers what nobody waits for while nothing else is asked, and gives it up as soon as something is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import TypeVar

from shared.errors import Overloaded
from shared.request import RequestContext

ValueT = TypeVar("ValueT")


class IdleTime:
    """Of one replica. What is given up keeps others waiting for no more than the engine's present step."""

    def __init__(self) -> None:
        self._num_waited_for = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._spent: set[asyncio.Timeout] = set()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Somebody waits for what is done in it."""
        self._num_waited_for += 1
        self._idle.clear()
        while self._spent:
            self._spent.pop().reschedule(0.0)
        try:
            yield
        finally:
            self._num_waited_for -= 1
            if not self._num_waited_for:
                self._idle.set()

    async def spend(
        self, ctx: RequestContext, events: AsyncGenerator[ValueT, None]
    ) -> AsyncGenerator[ValueT, None]:
        """All of ``events`` at their end; they are begun when nobody waits for anything else.

        Raises:
            Overloaded: somebody came. DeadlineExceeded: there was no such time.
        """
        async with aclosing(events):
            async with ctx.until_deadline("waiting for idle time"):
                while self._num_waited_for:
                    await self._idle.wait()
            found = await self._all(events)
        for event in found:
            yield event

    async def _all(self, events: AsyncGenerator[ValueT, None]) -> list[ValueT]:
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._spent.add(limit)
                return [event async for event in events]
        except TimeoutError:
            raise Overloaded("idle: something else was asked meanwhile; ask again") from None
        finally:
            self._spent.discard(limit)

    def check_invariants(self) -> None:
        assert self._idle.is_set() == (not self._num_waited_for), "idle, and yet somebody waits"
        assert not (self._spent and self._num_waited_for), "somebody waits, and something was not given up"
