"""Waits for a service that is away for a while, as long as the caller's deadline lets it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared.errors import Unavailable
from shared.request import RequestContext

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_MARGIN_S = 0.5
"""Left for telling the caller why, instead of nothing until its deadline has passed."""


async def patiently(ctx: RequestContext, doing: str, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """``call()``, made again while it fails as unavailable. It must change nothing, or be the same when made
    twice.

    Raises:
        Unavailable: it still failed shortly before the deadline.
    """
    now = asyncio.get_running_loop().time
    give_up_s = now() + ctx.remaining_s - _MARGIN_S
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await call()
        except Unavailable as error:
            if now() + pause_s >= give_up_s:
                raise
            log.info("waiting while %s: %s", doing, error.detail)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
