"""Pauses before calls that were refused for want of room, when the service says that they may come again."""

from __future__ import annotations

import asyncio

from shared.errors import KvquiltError, Overloaded
from shared.request import RequestContext

_UNSAID_S = 0.5
"""The first pause where the service names none; each further one is twice as long."""


class OverloadPauses:
    """``shared.patience.Pauses`` of one call. ``most``: how often it is repeated."""

    passing: type[KvquiltError] = Overloaded

    def __init__(self, ctx: RequestContext, most: int) -> None:
        self._ctx, self._most = ctx, most
        self._number = 0

    async def pause_or_raise(self, error: KvquiltError) -> None:
        pause_s = error.retry_after_s or _UNSAID_S * 2**self._number
        if self._number == self._most or pause_s >= self._ctx.remaining_s:
            raise error from None
        self._number += 1
        await asyncio.sleep(pause_s)
