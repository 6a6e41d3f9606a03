"""Limits how long a call to another service may take, and how long it is tried."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from shared.errors import DeadlineExceeded, KvquiltError
from shared.patience import RetryPauses
from shared.request import RequestContext
from shared.tracing.names import NUM_CHUNKS
from shared.tracing.spans import span

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """A run may last hours, one call of it may not: a service that hangs is noticed after ``timeout_s``, and
    a document that a service dies of is given up ``patience_s`` after its first failure."""

    timeout_s: float = 120.0
    patience_s: float = 600.0
    first_pause_s: float = 0.5

    async def run(
        self,
        ctx: RequestContext,
        call: Callable[[RequestContext], Awaitable[ResultT]],
        work: int = 1,
        stage: str = "",
        num_chunks: int = 0,
    ) -> ResultT:
        """Calls, and calls again where the error says that this may help, until shortly before the deadline;
        ``work`` multiplies the time one try gets. ``stage``: what traces call it, if it is to be seen there,
        with the number of its chunks."""
        if not stage:
            return await self._run(ctx, call, work)
        with span(ctx, stage, {NUM_CHUNKS: num_chunks}) as traced:
            return await self._run(traced.ctx, call, work)

    async def _run(
        self, ctx: RequestContext, call: Callable[[RequestContext], Awaitable[ResultT]], work: int
    ) -> ResultT:
        pauses = RetryPauses(ctx.remaining_s, "ingesting", self.first_pause_s, self.patience_s)
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
