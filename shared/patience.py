"""Waits for a service that is away for a while, as long as the caller's deadline lets it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol, TypeVar

from shared.errors import KvquiltError, Unavailable
from shared.request import RequestContext

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_MARGIN_S = 0.5
"""Left for telling the caller why, instead of nothing until its deadline has passed."""


class Pauses(Protocol):
    """When a call that failed may be made again."""

    passing: type[KvquiltError]
    """The failures after which it may."""

    async def pause_or_raise(self, error: KvquiltError) -> None:
        """Returns when the call that failed by ``error`` may be made again.

        Raises:
            error: that would be too late.
        """
        ...


class RetryPauses:
    """Growing pauses of one who asks again, for ``remaining_s`` seconds from now and at most ``patience_s``
    from the first failure on; ``doing``: what for."""

    passing: type[KvquiltError] = Unavailable

    def __init__(
        self,
        remaining_s: float,
        doing: str,
        pause_s: float = _FIRST_PAUSE_S,
        patience_s: float = math.inf,
    ) -> None:
        self._now = asyncio.get_running_loop().time
        self._deadline_s = self._now() + remaining_s
        self._doing = doing
        self._pause_s = pause_s
        self._patience_s = patience_s
        self._give_up_s: float | None = None

    @property
    def remaining_s(self) -> float:
        return self._deadline_s - self._now()

    async def pause_or_raise(self, error: KvquiltError) -> None:
        if self._give_up_s is None:
            self._give_up_s = self._now() + self._patience_s
        late = self._pause_s + _MARGIN_S >= self.remaining_s
        if late or self._now() + self._pause_s > self._give_up_s:
            raise error from None
        # once, when it lasts: a command line has no other sign of life
        level = logging.WARNING if self._pause_s < _LONGEST_PAUSE_S <= 2 * self._pause_s else logging.INFO
        log.log(level, "waiting while %s: %s", self._doing, error.detail)
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


async def patiently(ctx: RequestContext, doing: str, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """``call()``, made again while it fails as unavailable. It must change nothing, or be the same when made
    twice.

    Raises:
        Unavailable: it still failed shortly before the deadline.
    """
    return await patient_call(RetryPauses(ctx.remaining_s, doing), call)


async def patient_call(pauses: Pauses, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """``call()``, made again while its failures pass. Raises like ``Pauses``."""
    while True:
        try:
            return await call()
        except pauses.passing as error:
            await pauses.pause_or_raise(error)


async def patient_stream(
    pauses: Pauses, start: Callable[[], AsyncGenerator[ResultT, None]]
) -> AsyncGenerator[ResultT, None]:
    """Yields from ``start()``, begun anew while its failures pass and come before its first value. Raises
    like ``Pauses``, and whatever came after the first value."""
    begun = False
    while True:
        try:
            async with aclosing(start()) as values:
                async for value in values:
                    begun = True
                    yield value
            return
        except pauses.passing as error:
            if begun:
                raise
            await pauses.pause_or_raise(error)
