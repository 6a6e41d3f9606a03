"""Repeats calls that change nothing and were refused for want of room, when the service says that they may
come again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from shared.errors import Overloaded
from shared.request import RequestContext

ValueT = TypeVar("ValueT")
_UNSAID_S = 0.5
"""The first pause where the service names none; each further one is twice as long."""


class OverloadRetries:
    """``most``: how often one call is repeated."""

    def __init__(self, most: int) -> None:
        self._most = most

    async def of_call(self, ctx: RequestContext, call: Callable[[], Awaitable[ValueT]]) -> ValueT:
        """The result of ``call``.

        Raises:
            Overloaded: it was still refused, or could not be made again before the deadline.
        """
        for number in range(self._most):
            try:
                return await call()
            except Overloaded as refused:
                await _pause(ctx, refused, number)
        return await call()

    async def of_stream(
        self, ctx: RequestContext, start: Callable[[], AsyncGenerator[ValueT, None]]
    ) -> AsyncGenerator[ValueT, None]:
        """The values of a stream, begun anew only while nothing has come. Raises like ``of_call``."""
        for number in range(self._most + 1):
            begun = False
            try:
                async with aclosing(start()) as values:
                    async for value in values:
                        begun = True
                        yield value
                return
            except Overloaded as refused:
                if begun or number == self._most:
                    raise
                await _pause(ctx, refused, number)


async def _pause(ctx: RequestContext, refused: Overloaded, number: int) -> None:
    pause_s = refused.retry_after_s or _UNSAID_S * 2**number
    if pause_s >= ctx.remaining_s:
        raise refused from None
    await asyncio.sleep(pause_s)
