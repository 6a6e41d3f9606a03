"""Limits how long a call to another service may take, and how long it is tried."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from shared.errors import DeadlineExceeded, KvquiltError
from shared.patience import RetryPauses
from shared.request import RequestContext

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """A run may last hours, one call of it may not: a service that hangs is noticed after ``timeout_s``."""

    timeout_s: float = 120.0
    first_pause_s: float = 0.5

    async def run(
        self, ctx: RequestContext, call: Callable[[RequestContext], Awaitable[ResultT]], work: int = 1
    ) -> ResultT:
        """Calls, and calls again where the error says that this may help, until shortly before the deadline;
        ``work`` multiplies the time one try gets."""
        pauses = RetryPauses(ctx.remaining_s, "ingesting", self.first_pause_s)
        while True:
            try:
                return await call(self._limited(ctx, work))
            except KvquiltError as error:
                ctx.check_deadline("ingesting")
                if not (error.retryable or isinstance(error, DeadlineExceeded)):
                    raise
                await pauses.pause_or_raise(error)

    def _limited(self, ctx: RequestContext, work: int) -> RequestContext:
        return replace(ctx, deadline_s=min(ctx.deadline_s, time.monotonic() + self.timeout_s * work))
