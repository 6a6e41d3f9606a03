"""Records stages of a request as spans: ``with span(ctx, "retrieve") as stage: … stage.ctx …``.

A request is traced if its caller's ``traceparent`` says so, or, where a trace may begin and the caller said
nothing, by chance. What is called inside a stage is given ``stage.ctx``: its spans stand below that of the
stage. Errors are recorded by their code alone; their texts may quote what somebody asked.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from shared.errors import KvquiltError
from shared.request import RequestContext
from shared.tracing.names import ERROR_TYPE, REQUEST_ID, TENANT
from shared.tracing.traceparent import is_sampled, span_id_of, trace_id_of, traceparent_of

Value = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Value]
ValueT = TypeVar("ValueT")
_GONE = (GeneratorExit, asyncio.CancelledError)
"""The caller has what it wanted, or wants it no more: no error."""
_EPOCH_NS = time.time_ns() - time.monotonic_ns()
"""What turns an instant of this process into one that other machines understand; read once, so that a clock
that is set does not tear a trace apart."""


@dataclass(frozen=True, slots=True)
class Recording:
    """How this process records. ``share``: of the requests whose caller does not say whether they are
    traced."""

    tracer: Tracer
    share: float = 0.0
    content: bool = False


_recording: Recording | None = None


def record_by(recording: Recording | None) -> Recording | None:
    """From now on this process records like this (None: nothing); returns how it did before."""
    global _recording
    before, _recording = _recording, recording
    return before


class StageSpan:
    """A stage that goes on. ``ctx``: for what is done in it."""

    __slots__ = ("_span", "ctx")

    def __init__(self, ctx: RequestContext, span: Span | None = None) -> None:
        self.ctx = ctx
        self._span = span

    @property
    def recorded(self) -> bool:
        """Somebody will see it. Elsewhere attributes need not be computed."""
        return self._span is not None

    @property
    def with_content(self) -> bool:
        """It may hold what was asked, found and answered."""
        return self.recorded and _recording is not None and _recording.content

    def set(self, attributes: Attributes) -> None:
        if self._span is not None:
            self._span.set_attributes(attributes)

    def failed(self, error: BaseException) -> None:
        """``error`` is told to the caller, though nobody raises it any further."""
        if self._span is not None:
            self._span.set_attribute(ERROR_TYPE, _name_of(error))
            self._span.set_status(Status(StatusCode.ERROR))


@contextmanager
def span(
    ctx: RequestContext,
    name: str,
    attributes: Attributes | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    may_begin: bool = False,
) -> Iterator[StageSpan]:
    """``name``: the same for all requests. ``may_begin``: a trace may begin here."""
    if not is_traced(ctx, may_begin):
        yield StageSpan(ctx)
        return
    with _recorded(ctx, name, attributes, kind) as stage:
        yield stage


def add_span(
    ctx: RequestContext, name: str, began_s: float, ended_s: float, attributes: Attributes | None = None
) -> RequestContext:
    """Adds a stage that has ended, between two instants of ``time.monotonic()``; returns what stands below it
    goes by."""
    if not is_traced(ctx):
        return ctx
    began, ended = (int(instant_s * 1e9) + _EPOCH_NS for instant_s in (began_s, ended_s))
    added = _start(ctx, name, attributes or {}, SpanKind.INTERNAL, began)
    added.end(max(began, ended))
    found = added.get_span_context()
    return replace(ctx, traceparent=traceparent_of(found.trace_id, found.span_id))


async def traced(
    ctx: RequestContext,
    name: str,
    work: Callable[[RequestContext], Awaitable[ValueT]],
    told: Callable[[ValueT], Attributes] = lambda found: {},
) -> ValueT:
    """What ``work`` finds, as a stage. ``told``: what is said of it."""
    with span(ctx, name) as stage:
        found = await work(stage.ctx)
        if stage.recorded:
            stage.set(told(found))
    return found


def traced_stream(
    ctx: RequestContext,
    name: str,
    attributes: Attributes | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    may_begin: bool = False,
    *,
    stream: Callable[[StageSpan], AsyncGenerator[ValueT, None]],
) -> AsyncGenerator[ValueT, None]:
    """The values of a stream that is a stage as long as it lasts."""
    if not is_traced(ctx, may_begin):
        return stream(StageSpan(ctx))

    async def recorded() -> AsyncGenerator[ValueT, None]:
        with _recorded(ctx, name, attributes, kind) as stage:
            async with aclosing(stream(stage)) as values:
                async for value in values:
                    yield value

    return recorded()


def is_traced(ctx: RequestContext, may_begin: bool = False) -> bool:
    """Spans of ``ctx`` are recorded here."""
    if _recording is None:
        return False
    if ctx.traceparent or not may_begin:
        return is_sampled(ctx.traceparent)
    return _recording.share > 0 and random.random() < _recording.share


@contextmanager
def _recorded(
    ctx: RequestContext, name: str, attributes: Attributes | None, kind: SpanKind
) -> Iterator[StageSpan]:
    started = _start(ctx, name, attributes or {}, kind, time.monotonic_ns() + _EPOCH_NS)
    found = started.get_span_context()
    stage = StageSpan(replace(ctx, traceparent=traceparent_of(found.trace_id, found.span_id)), started)
    try:
        yield stage
    except BaseException as error:
        if not isinstance(error, _GONE):
            stage.failed(error)
        raise
    finally:
        started.end(time.monotonic_ns() + _EPOCH_NS)


def _start(ctx: RequestContext, name: str, attributes: Attributes, kind: SpanKind, began_ns: int) -> Span:
    assert _recording is not None
    context = Context()  # not that of the task, which may be another request's
    if ctx.traceparent:
        trace_id, span_id = int(trace_id_of(ctx.traceparent), 16), int(span_id_of(ctx.traceparent), 16)
        parent = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        context = set_span_in_context(NonRecordingSpan(parent), context)
    everywhere = {REQUEST_ID: ctx.request_id, TENANT: ctx.tenant}
    return _recording.tracer.start_span(
        name, context, kind, {**everywhere, **attributes}, start_time=began_ns
    )


def _name_of(error: BaseException) -> str:
    return error.code if isinstance(error, KvquiltError) else type(error).__name__
