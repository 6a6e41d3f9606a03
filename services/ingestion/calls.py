"""Limits how long a call to another service may take, and how often it is tried."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from shared.errors import DeadlineExceeded, KvquiltError
from shared.request import RequestContext

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")
Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """A run may last hours, one call of it may not: a service that hangs is noticed after ``timeout_s``."""

    timeout_s: float = 120.0
    attempts: int = 6
    first_pause_s: float = 0.5
    longest_pause_s: float = 8.0
    sleep: Sleep = asyncio.sleep

    async def run(
        self, ctx: RequestContext, call: Callable[[RequestContext], Awaitable[ResultT]], work: int = 1
    ) -> ResultT:
        """Calls, and calls again where the error says that this may help; ``work`` multiplies the time one
        try gets."""
        for attempt in range(1, self.attempts + 1):
            try:
                return await call(self._limited(ctx, work))
            except KvquiltError as error:
                ctx.check_deadline("ingesting")
                if attempt == self.attempts or not (error.retryable or isinstance(error, DeadlineExceeded)):
                    raise
                log.warning("try %d of %d failed: %s", attempt, self.attempts, error.detail)
            await self.sleep(min(self.longest_pause_s, self.first_pause_s * 2 ** (attempt - 1)))
        raise AssertionError("unreachable")

    def _limited(self, ctx: RequestContext, work: int) -> RequestContext:
        return replace(ctx, deadline_s=min(ctx.deadline_s, time.monotonic() + self.timeout_s * work))
