"""Turns a handler into an RPC method: checked requests and their context in, errors out.

Who calls is known (``shared.principals.callers``) before anything of the call is looked at.

A handler is ``async def Name(self, request, ctx)``: proto in, proto out, no decisions. The decorators make of
it ``Name(self, request, grpc_context=None)``, which three callers understand: Ray Serve's gRPC ingress (the
name of the parameter is its contract), a plain ``grpc.aio`` server, and a Serve handle of another service (no
context: errors are raised as they are).

Longer than other modules, as the four kinds of calls differ in a few words and are read side by side.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar, cast

import grpc
from opentelemetry.trace import SpanKind

from protos.kvquilt.v1 import common_pb2
from shared import errors
from shared import log as logs
from shared.admission.entering import Entering
from shared.admission.entrance import Entrance
from shared.admission.memory import MemoryBudget, default_budget_bytes
from shared.audit import OK
from shared.audited import CallRecord, Recorder
from shared.clients.health import HEALTH, ServiceHealth
from shared.errors import KvquiltError
from shared.limits import DEFAULT_LIMITS, RequestLimits
from shared.metrics.calls import counted
from shared.metrics.recorder import Metrics
from shared.principals.callers import OPERATOR, Call, Caller, Callers, Meta
from shared.principals.principal import Role
from shared.request import RequestContext
from shared.status import DETAILS_KEY, to_status, with_code
from shared.tracing.names import RPC_METHOD, RPC_SYSTEM
from shared.tracing.spans import Attributes, StageSpan, span, traced_stream
from shared.tracing.traceparent import HEADER, read_traceparent

log = logging.getLogger(__name__)
_LINGER_S = 0.25
_caller: ContextVar[Caller] = ContextVar("kvquilt_caller", default=OPERATOR)
_traceparent: ContextVar[str] = ContextVar("kvquilt_traceparent", default="")


class _Request(Protocol):
    @property
    def meta(self) -> Meta: ...


class GrpcContext(Protocol):
    """The part that ``grpc.aio.ServicerContext`` and Serve's ``RayServegRPCContext`` have in common."""

    def set_code(self, code: grpc.StatusCode) -> None: ...
    def set_details(self, details: str) -> None: ...
    def set_trailing_metadata(self, trailing_metadata: Any) -> None: ...
    def invocation_metadata(self) -> Any: ...
    def peer(self) -> str: ...


RequestT = TypeVar("RequestT", bound=_Request)
ResponseT = TypeVar("ResponseT")
SelfT = TypeVar("SelfT")
ServiceT = TypeVar("ServiceT")
CallT = TypeVar("CallT", bound=Callable[..., Any])
Answering = Callable[..., Awaitable[ResponseT]]
Streaming = Callable[..., AsyncIterator[ResponseT]]


def unary(
    handler: Callable[[SelfT, RequestT, RequestContext], Awaitable[ResponseT]],
) -> Answering[ResponseT]:
    """One request, one response."""
    method = handler.__name__

    async def answer(self: SelfT, request: RequestT, call: Entering) -> ResponseT:
        with span(context_of(request.meta), *_call_of(self, method)) as stage:
            return await handler(self, request, call.let_in(self, request, stage))

    return _answering(handler, answer)


def client_stream(
    handler: Callable[[SelfT, AsyncIterator[Any]], Awaitable[ResponseT]],
) -> Answering[ResponseT]:
    """A stream of requests, one response. The context comes from the stream's first message: the handler's to
    build."""
    return _answering(
        handler, lambda self, requests, call: handler(self, call.checked(self, requests, context_of))
    )


def server_stream(
    handler: Callable[[SelfT, RequestT, RequestContext], AsyncIterator[ResponseT]],
) -> Streaming[ResponseT]:
    """One request, a stream of responses. The handler's ``finally`` runs when the caller goes away."""
    method = handler.__name__

    def start(self: SelfT, request: RequestT, call: Entering) -> AsyncGenerator[ResponseT, None]:
        def stream(stage: StageSpan) -> Any:
            return handler(self, request, call.let_in(self, request, stage))

        return traced_stream(context_of(request.meta), *_call_of(self, method), stream=stream)

    return _streaming(handler, start)


def both_streams(
    handler: Callable[[SelfT, AsyncIterator[Any]], AsyncIterator[ResponseT]],
) -> Streaming[ResponseT]:
    """A stream of requests, a stream of responses. The context comes from the first request: the handler's to
    build. One that fails takes for a moment what its caller is still sending: a call that ends while its
    client writes is told in gRPC's words instead of ours."""

    async def lingering(
        self: SelfT, requests: AsyncIterator[Any], call: Entering
    ) -> AsyncGenerator[ResponseT, None]:
        responses: Any = handler(self, call.checked(self, requests, context_of))
        try:
            async with contextlib.aclosing(responses):
                async for response in responses:
                    yield response
        except Exception:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_LINGER_S):
                    async for _ in requests:
                        pass
            raise

    return _streaming(handler, lingering)


def _answering(handler: Callable[..., Any], answer: Answering[ResponseT]) -> Answering[ResponseT]:
    """Answers by the status where it tells the story: the answer is an empty message of the handler's return
    type."""
    response_type = inspect.get_annotations(handler, eval_str=True)["return"]

    async def call(self: Any, request: Any, grpc_context: GrpcContext | None = None) -> ResponseT:
        entry = CallRecord.of(self, handler.__name__, request, grpc_context)
        with counted(self, handler.__name__) as outcome:
            try:
                with contextlib.ExitStack() as held:
                    outside = await _let_in(self, handler.__name__, grpc_context)
                    entry.let_in(context_of)
                    response = await answer(self, request, Entering(handler.__name__, outside, held))
            except Exception as error:
                outcome.failed(error)
                await entry.failed(error)
                _fail(handler.__name__, error, grpc_context)
                return cast(ResponseT, response_type())
            await entry.ended(OK)
            return response

    return _named_like(call, handler)


def _streaming(handler: Callable[..., Any], start: Streaming[ResponseT]) -> Streaming[ResponseT]:
    """Serve hands its copy of the context over with each message, so a status set after the last one would be
    lost and a broken stream would look whole: there it travels by an exception, which keeps code and details
    but no trailing metadata. Hence the error's code in the details."""

    async def call(
        self: Any, request: Any, grpc_context: GrpcContext | None = None
    ) -> AsyncIterator[ResponseT]:
        responses: Any = None
        held = contextlib.ExitStack()
        entry = CallRecord.of(self, handler.__name__, request, grpc_context)
        with counted(self, handler.__name__) as outcome:
            try:
                outside = await _let_in(self, handler.__name__, grpc_context)
                entry.let_in(context_of)
                responses = start(self, request, Entering(handler.__name__, outside, held))
                async for response in responses:
                    yield response
                await entry.ended(OK)
            except Exception as failure:
                outcome.failed(failure)
                await entry.failed(failure)
                error = _fail(handler.__name__, failure, grpc_context)
                if grpc_context is not None and not hasattr(grpc_context, "abort"):
                    grpc_context.set_details(with_code(error))
                    raise error from None
            finally:
                with held:
                    if responses is not None:
                        await responses.aclose()
                await entry.ended("CANCELLED")

    return _named_like(call, handler)


async def _let_in(service: object, method: str, grpc_context: GrpcContext | None) -> bool:
    """Whether the call comes from outside, and not from another service.

    Raises:
        Unauthenticated, PermissionDenied, Unavailable: as ``Callers.of_call``.
    """
    callers: Callers | None = getattr(service, "callers", None)
    told = grpc_context
    call = None if told is None else Call(told.invocation_metadata() or (), told.peer())
    _traceparent.set(_told_in(call))
    caller = OPERATOR if callers is None else await callers.of_call(method, call)
    _caller.set(caller)
    return call is not None and not caller.speaks_for_others


def _told_in(call: Call | None) -> str:
    """The caller's span; empty: nothing is told."""
    found = (value for name, value in (call.metadata if call else ()) if name == HEADER)
    told = next(found, "")
    return read_traceparent(told) if isinstance(told, str) else ""


def context_of(meta: Meta) -> RequestContext:
    """Of a request of the call that this task answers.

    Raises:
        Unauthenticated, InvalidRequest: as ``Caller.context``.
    """
    ctx = _caller.get().context(meta)
    return ctx if ctx.traceparent else replace(ctx, traceparent=_traceparent.get())


def _call_of(service: object, method: str) -> tuple[str, Attributes, SpanKind, bool]:
    """The span of a call: its name, what it says, its kind, and whether a trace may begin with it."""
    named: str = getattr(service, "application", "")
    attributes = {RPC_SYSTEM: "grpc", RPC_METHOD: method}
    return f"{named}/{method}", attributes, SpanKind.SERVER, method in getattr(service, "begins_traces", ())


def _fail(method: str, error: Exception, grpc_context: GrpcContext | None) -> KvquiltError:
    """Tells the caller; nothing but ``KvquiltError.detail`` leaves the process. Returns what the caller is
    told."""
    if not isinstance(error, KvquiltError):
        log.exception("unexpected error in %s", method)
        error = errors.InternalError(f"{method} failed unexpectedly; the service's log has the reason")
    else:
        log.info("%s failed: %s: %s", method, error.code, logs.unquoted(error.detail))
    if grpc_context is None:
        raise error from None
    name, details = to_status(error)
    grpc_context.set_code(grpc.StatusCode[name])
    grpc_context.set_details(error.detail)
    grpc_context.set_trailing_metadata([(DETAILS_KEY, details)])  # Serve appends it to a list of its own
    return error


def _named_like(call: CallT, handler: Any) -> CallT:
    # Not functools.wraps: Serve reads the signature to see whether to pass grpc_context, and must see call's
    # own.
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(call, name, getattr(handler, name))
    return call


class HealthServicer:
    """The RPC that every service has. ``application``: who says it; ``limits``: of every request to it;
    ``callers``: who may make them, None: everybody; ``begins_traces``: calls that are traced by chance;
    ``recorder``: of those that are on record, None: none are; ``door``: where they come in."""

    application: str
    limits: RequestLimits = DEFAULT_LIMITS
    callers: Callers | None = None
    metrics: Metrics | None = None
    begins_traces: frozenset[str] = frozenset()
    recorder: Recorder | None = None
    door: Entrance | None = None

    def guard(self, limits: RequestLimits, memory_bytes: int = 0) -> None:
        """Holds requests to ``limits``, and all that are under way to so much memory; 0: to a part of the
        machine's, or the container's."""
        self.limits = limits
        self.door = Entrance(limits.per_principal, MemoryBudget(memory_bytes or default_budget_bytes()))

    @unary
    async def Health(
        self, request: common_pb2.HealthRequest, ctx: RequestContext
    ) -> common_pb2.HealthResponse:
        return HEALTH.to_pb(await self.told(ctx))

    async def told(self, ctx: RequestContext) -> ServiceHealth:
        """Returns what the caller may know: who has no role, that the service lives, at no cost; others how
        it is; administrators its facts, too."""
        if not ctx.principal.roles:
            return ServiceHealth(self.application, ready=True)
        try:
            health = await self.healthy(ctx)
        except KvquiltError as error:
            return ServiceHealth(self.application, ready=False, detail=error.detail)
        if not ctx.principal.may(Role.ADMIN):
            return replace(health, facts={})
        trouble = self.callers.trouble if self.callers is not None else ""
        return replace(health, detail="; ".join(filter(None, (health.detail, trouble))))

    async def healthy(self, ctx: RequestContext) -> ServiceHealth:
        """Describes a service that is ready.

        Raises:
            KvquiltError: why it is not.
        """
        return ServiceHealth(self.application, ready=True)


class LoadedServicer(HealthServicer, Generic[ServiceT]):
    """``loaded`` is an error while there is no service: every call then answers with it, and Health says
    it."""

    def __init__(self, loaded: ServiceT | KvquiltError) -> None:
        self._loaded = loaded

    @property
    def _service(self) -> ServiceT:
        if isinstance(self._loaded, KvquiltError):
            raise self._loaded
        return self._loaded
