"""Records stages of a request as spans: ``with span(ctx, "retrieve") as stage: … stage.ctx …``.

A request is traced if its caller's ``traceparent`` says so, or, where a trace may begin and the caller said
nothing, by chance. What is called inside a stage is given ``stage.ctx``: its spans stand below that of the
stage. Errors are recorded by their code alone; their texts may quote what somebody asked.

Spans are made when they have ended, as ``ReadableSpan``, for processors and exporters of OpenTelemetry's SDK.
Its own ``Tracer`` makes one in 30 µs, of which most is copying attributes and sampling; here it is 10.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

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
_SCOPE = InstrumentationScope("kvquilt")
_RECORDED = TraceFlags(TraceFlags.SAMPLED)
_UNSET, _ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)


@dataclass(frozen=True, slots=True)
class Recording:
    """Settings by which this process records. ``processor``: is given the spans that have ended. ``share``:
    of the requests whose caller does not say whether they are traced."""

    processor: SpanProcessor
    resource: Resource
    share: float = 0.0
    content: bool = False


_recording: Recording | None = None


def record_by(recording: Recording | None) -> Recording | None:
    """From now on this process records like this (None: nothing); returns how it did before."""
    global _recording
    before, _recording = _recording, recording
    return before


class _Span:
    """One that goes on. Written by one task."""

    __slots__ = ("_began_ns", "_context", "_kind", "_name", "_parent", "attributes", "status", "traceparent")

    def __init__(
        self, ctx: RequestContext, name: str, attributes: Attributes | None, kind: SpanKind, began_ns: int
    ) -> None:
        parent = ctx.traceparent
        trace_id = int(trace_id_of(parent), 16) if parent else random.getrandbits(128) or 1
        span_id = random.getrandbits(64) or 1
        self._parent = SpanContext(trace_id, int(span_id_of(parent), 16), True, _RECORDED) if parent else None
        self._context = SpanContext(trace_id, span_id, False, _RECORDED)
        self._name, self._kind, self._began_ns = name, kind, began_ns
        self.attributes: dict[str, Value] = {REQUEST_ID: ctx.request_id, TENANT: ctx.tenant}
        if attributes:
            self.attributes.update(attributes)
        self.status = _UNSET
        self.traceparent = traceparent_of(trace_id, span_id)

    def end(self, ended_ns: int) -> None:
        if (recording := _recording) is None:
            return
        recording.processor.on_end(
            ReadableSpan(
                self._name,
                self._context,
                self._parent,
                recording.resource,
                self.attributes,
                kind=self._kind,
                status=self.status,
                start_time=self._began_ns,
                end_time=ended_ns,
                instrumentation_scope=_SCOPE,
            )
        )


class StageSpan:
    """A stage that goes on. ``ctx``: for what is done in it."""

    __slots__ = ("_span", "ctx")

    def __init__(self, ctx: RequestContext, span: _Span | None = None) -> None:
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
            self._span.attributes.update(attributes)

    def failed(self, error: BaseException) -> None:
        """``error`` is told to the caller, though nobody raises it any further."""
        if self._span is not None:
            self._span.attributes[ERROR_TYPE] = _name_of(error)
            self._span.status = _ERROR


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
    added = _Span(ctx, name, attributes, SpanKind.INTERNAL, began)
    added.end(max(began, ended))
    return replace(ctx, traceparent=added.traceparent)


async def traced(
    ctx: RequestContext,
    name: str,
    work: Callable[[RequestContext], Awaitable[ValueT]],
    told: Callable[[ValueT], Attributes] = lambda found: {},
) -> ValueT:
    """Runs ``work`` as a stage. ``told``: what is said of it."""
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
    started = _Span(ctx, name, attributes, kind, time.monotonic_ns() + _EPOCH_NS)
    stage = StageSpan(replace(ctx, traceparent=started.traceparent), started)
    try:
        yield stage
    except BaseException as error:
        if not isinstance(error, _GONE):
            stage.failed(error)
        raise
    finally:
        started.end(time.monotonic_ns() + _EPOCH_NS)


def _name_of(error: BaseException) -> str:
    return error.code if isinstance(error, KvquiltError) else type(error).__name__
