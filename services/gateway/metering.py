"""Measures questions as their callers see them, and how the other services are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing

from services.gateway.ports import Answering, HealthSource
from services.gateway.status import system_status
from shared.answer import AnswerDone, AnswerEvent, AnswerText, AnswerUsage, Inquiry, Retrieved
from shared.errors import Cancelled, InternalError, KvquiltError
from shared.generation.told import FinishReason, TokenEvent, Usage
from shared.metrics import table
from shared.metrics.calls import OK
from shared.metrics.recorder import MetricReading, Metrics
from shared.principals.signing import Signer
from shared.request import RequestContext

REFUSED = "REFUSED"
NO_MODE = "none"


class Metered:
    """An ``Answering`` that measures what ``pipeline`` answers. ``clock``: seconds, from any instant on."""

    def __init__(
        self, pipeline: Answering, metrics: Metrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pipeline, self._metrics, self._clock = pipeline, metrics, clock

    async def answer(self, ctx: RequestContext, inquiry: Inquiry) -> AsyncGenerator[AnswerEvent, None]:
        """As ``Pipeline.answer``."""
        question = _Question(self._metrics, ctx.tenant, self._clock)
        self._metrics.add(table.ANSWERS_RUNNING)
        try:
            async with aclosing(self._pipeline.answer(ctx, inquiry)) as events:
                async for event in events:
                    question.on(event)
                    yield event
        except Exception as error:
            question.code = error.code if isinstance(error, KvquiltError) else InternalError.code
            raise
        finally:
            self._metrics.add(table.ANSWERS_RUNNING, -1)
            question.end()


class _Question:
    def __init__(self, metrics: Metrics, tenant: str, clock: Callable[[], float]) -> None:
        self._metrics, self._tenant, self._clock = metrics, tenant, clock
        self._arrived_s = clock()
        self._first_s: float | None = None
        self._answered = False
        self._usage: Usage | None = None
        self.code = Cancelled.code

    def on(self, event: AnswerEvent) -> None:
        match event:
            case Retrieved():
                self._metrics.observe(table.RETRIEVE_SECONDS, self._since())
                if event.follow_up:
                    self._metrics.add(table.FOLLOW_UPS, searched=event.follow_up.value)
            case TokenEvent():
                if self._first_s is None:
                    self._first_s = self._since()
            case AnswerText():
                self._answered |= event.finish_reason is not FinishReason.REFUSED
            case AnswerUsage():
                self._usage = event.usage
            case AnswerDone():
                self.code = OK if self._answered else REFUSED

    def end(self) -> None:
        metrics, usage = self._metrics, self._usage
        mode = str(usage.reuse) if usage is not None and usage.reuse else NO_MODE
        metrics.add(table.ANSWERS, mode=mode, code=self.code, tenant=self._tenant)
        if self._first_s is not None:  # also of one that broke off later
            metrics.observe(table.ANSWER_FIRST_TOKEN, self._first_s, mode=mode)
        if self.code in (OK, REFUSED):
            metrics.observe(table.ANSWER_SECONDS, self._since(), mode=mode)
        if usage is None:
            return
        kinds = {
            "prompt": usage.prompt_tokens,
            "cached": usage.reused_tokens,
            "generated": usage.generated_tokens,
        }
        for kind, num in kinds.items():
            metrics.add(table.ANSWER_TOKENS, num, kind=kind, tenant=self._tenant)

    def _since(self) -> float:
        return self._clock() - self._arrived_s


class ServicesHealth:
    """The other services as an operator is told of them, for metrics: asked when somebody looks.

    ``loop``: on which they can be asked. ``signer``: tells them that the gateway asks."""

    def __init__(
        self,
        sources: Mapping[str, HealthSource],
        timeout_s: float,
        loop: asyncio.AbstractEventLoop,
        signer: Signer | None = None,
    ) -> None:
        self._sources, self._timeout_s, self._loop, self._signer = sources, timeout_s, loop, signer

    def readings(self) -> Iterator[MetricReading]:
        """From another thread than the loop's."""
        ctx = RequestContext.create(deadline_ms=int(1000 * self._timeout_s), signer=self._signer)
        asking = system_status(self._sources, ctx, self._timeout_s, {})
        found = asyncio.run_coroutine_threadsafe(asking, self._loop).result(2 * self._timeout_s)
        for one in found:
            yield MetricReading(table.SERVICE_READY, float(one.ready), {"service": one.service})
            yield MetricReading(table.SERVICE_IMPAIRED, float(bool(one.detail)), {"service": one.service})
