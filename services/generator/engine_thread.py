"""The engine's own thread, and the bridge between it and asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Protocol

from services.generator.idle import IdleTime
from services.generator.selection import Decision
from services.generator.tracing import add_stages
from shared.errors import InternalError, KvquiltError, Unavailable
from shared.generation.asked import GenerateRequest, PrefillRequest
from shared.generation.forest import Close, Command, ForestRequest
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import DoneEvent, Event, FailedEvent
from shared.request import RequestContext
from shared.streams import cancelled
from shared.threads import call_on
from shared.tracing.spans import is_traced

log = logging.getLogger(__name__)

Request = GenerateRequest | PrefillRequest | ForestRequest


class RunsRequests(Protocol):
    """The part of ``shared.engine.Engine`` that is used here. All but ``run`` may be called from any
    thread."""

    def submit(self, request: Request, sink: Callable[[Event], None]) -> None: ...
    def command(self, request_id: str, command: Command) -> None: ...
    def decide(self, request_id: str, reuse: ReuseMode, recompute: Recompute) -> None: ...
    def cancel(self, request_id: str) -> None: ...
    def run(self) -> None: ...
    def close(self) -> None: ...


class EngineThread:
    """Runs ``engine`` until ``close``. If it dies, every request in flight and every later one fails with
    ``Unavailable``: whoever supervises this process sees ``alive`` and replaces it."""

    def __init__(self, engine: RunsRequests) -> None:
        self.idle = IdleTime()
        self._engine = engine
        self._sinks: dict[str, Callable[[Event], None]] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return not self._ended

    async def stream(
        self,
        request: Request,
        ctx: RequestContext,
        commands: AsyncIterator[Command] | None = None,
        decision: Awaitable[Decision] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """The request's events; the last one is ``DoneEvent``. ``commands``: to a live forest, which is
        closed when they end; ``decision``: of a request whose mode is deferred, awaited once the engine has
        it. What either raises, this raises. One that is not ``idle`` takes the idle time. Closing the
        generator, or cancelling who iterates it, cancels the request in the engine. The queue has no
        bound: a branch yields at most ``max_tokens`` small events.

        Raises:
            KvquiltError: the engine refused the request, or it failed later.
        """
        # Callers choose their request ids, so two may be equal; the engine's must not.
        request = replace(
            request,
            request_id=f"{ctx.request_id}#{next(self._numbers)}",
            deadline_s=ctx.deadline_s,
            traceparent=ctx.traceparent if is_traced(ctx) else "",
            tenant=ctx.tenant,
            priority=ctx.priority,
        )
        events: asyncio.Queue[Event] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        sink = functools.partial(call_on, loop, events.put_nowait)
        self._register(request.request_id, sink)
        ended = False
        giving: asyncio.Task[None] | None = None
        held = contextlib.ExitStack()
        try:
            if not (isinstance(request, GenerateRequest) and request.idle):
                held.enter_context(self.idle.taken())
            self._engine.submit(request, sink)
            if commands is not None:
                giving = asyncio.create_task(self._give(request.request_id, commands, events))
            elif decision is not None:
                giving = asyncio.create_task(self._decide(request.request_id, decision, events))
            while not ended:
                event = await _next(events, ctx)
                if isinstance(event, (DoneEvent, FailedEvent)):
                    ended = True
                    add_stages(ctx, event.stages)
                if isinstance(event, FailedEvent):
                    raise event.error
                yield event
        finally:
            held.close()
            self._unregister(request.request_id)
            if not ended:
                self._engine.cancel(request.request_id)
            if giving is not None:
                await cancelled([giving])

    async def _give(
        self, request_id: str, commands: AsyncIterator[Command], events: asyncio.Queue[Event]
    ) -> None:
        with self._broken_off(request_id, "the commands", events):
            async for command in commands:
                self._engine.command(request_id, command)
            self._engine.command(request_id, Close())

    async def _decide(
        self, request_id: str, decision: Awaitable[Decision], events: asyncio.Queue[Event]
    ) -> None:
        with self._broken_off(request_id, "the choice of tokens", events):
            decided = await decision
            self._engine.decide(request_id, decided.mode, decided.recompute)

    @contextlib.contextmanager
    def _broken_off(self, request_id: str, what: str, events: asyncio.Queue[Event]) -> Iterator[None]:
        """An error inside ends the request with it."""
        try:
            yield
        except Exception as error:
            self._engine.cancel(request_id)
            known = (
                error
                if isinstance(error, KvquiltError)
                else InternalError(f"{what} broke off; the log has the reason")
            )
            if known is not error:
                log.exception("%s of request %s broke off", what, request_id)
            events.put_nowait(FailedEvent(known))

    def close(self) -> None:
        """Ends the thread. Requests in flight fail with ``Unavailable``."""
        self._engine.close()
        self._thread.join()

    def check_invariants(self) -> None:
        self.idle.check_invariants()
        with self._lock:
            assert self.alive or not self._sinks, "a request waits for an engine that has ended"

    def _run(self) -> None:
        try:
            self._engine.run()
        except BaseException:
            log.exception("the engine died")
        with self._lock:
            self._ended = True
            orphans, self._sinks = list(self._sinks.values()), {}
        for sink in orphans:
            sink(FailedEvent(_gone()))

    def _register(self, request_id: str, sink: Callable[[Event], None]) -> None:
        with self._lock:
            if self._ended:
                raise _gone()
            self._sinks[request_id] = sink

    def _unregister(self, request_id: str) -> None:
        with self._lock:
            self._sinks.pop(request_id, None)


async def _next(events: asyncio.Queue[Event], ctx: RequestContext) -> Event:
    """The engine enforces deadlines between its steps; this one also holds while a step is long."""
    if not events.empty():
        return events.get_nowait()
    async with ctx.until_deadline("generating"):
        return await events.get()


def _gone() -> KvquiltError:
    return Unavailable("the engine has stopped and is being replaced; retry")
