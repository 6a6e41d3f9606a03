"""Turns a handler into an RPC method: checked requests and their context in, errors out.

A handler is ``async def Name(self, request, ctx)``: proto in, proto out, no decisions. The decorators make of
it ``Name(self, request, grpc_context=None)``, which three callers understand: Ray Serve's gRPC ingress (the
name of the parameter is its contract), a plain ``grpc.aio`` server, and a Serve handle of another service (no
context: errors are raised as they are).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar, cast

import grpc

from protos.kvquilt.v1 import common_pb2
from shared import errors
from shared import log as logs
from shared.clients.health import HEALTH, ServiceHealth
from shared.errors import KvquiltError
from shared.limits import DEFAULT_LIMITS, RequestLimits, check_request
from shared.request import RequestContext
from shared.status import DETAILS_KEY, to_status, with_code

log = logging.getLogger(__name__)
_LINGER_S = 0.25


class _Meta(Protocol):
    request_id: str
    tenant: str
    deadline_ms: int


class _Request(Protocol):
    @property
    def meta(self) -> _Meta: ...


class GrpcContext(Protocol):
    """The part that ``grpc.aio.ServicerContext`` and Serve's ``RayServegRPCContext`` have in common."""

    def set_code(self, code: grpc.StatusCode) -> None: ...
    def set_details(self, details: str) -> None: ...
    def set_trailing_metadata(self, trailing_metadata: Any) -> None: ...


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
    return _answering(handler, lambda self, request: handler(self, request, _context(self, request)))


def client_stream(
    handler: Callable[[SelfT, AsyncIterator[Any]], Awaitable[ResponseT]],
) -> Answering[ResponseT]:
    """A stream of requests, one response. The context comes from the stream's first message: the handler's to
    build."""
    return _answering(handler, lambda self, requests: handler(self, _checked(self, requests)))


def server_stream(
    handler: Callable[[SelfT, RequestT, RequestContext], AsyncIterator[ResponseT]],
) -> Streaming[ResponseT]:
    """One request, a stream of responses. The handler's ``finally`` runs when the caller goes away."""
    return _streaming(handler, lambda self, request: handler(self, request, _context(self, request)))


def both_streams(
    handler: Callable[[SelfT, AsyncIterator[Any]], AsyncIterator[ResponseT]],
) -> Streaming[ResponseT]:
    """A stream of requests, a stream of responses. The context comes from the first request: the handler's to
    build. One that fails takes for a moment what its caller is still sending: a call that ends while its
    client writes is told in gRPC's words instead of ours."""

    async def lingering(self: SelfT, requests: AsyncIterator[Any]) -> AsyncGenerator[ResponseT, None]:
        responses: Any = handler(self, _checked(self, requests))
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
    """When the status tells the story, the answer is an empty message of the handler's return type."""
    response_type = inspect.get_annotations(handler, eval_str=True)["return"]

    async def call(self: Any, request: Any, grpc_context: GrpcContext | None = None) -> ResponseT:
        try:
            return await answer(self, request)
        except Exception as error:
            _fail(handler.__name__, error, grpc_context)
            return cast(ResponseT, response_type())

    return _named_like(call, handler)


def _streaming(handler: Callable[..., Any], start: Streaming[ResponseT]) -> Streaming[ResponseT]:
    """Serve hands its copy of the context over with each message, so a status set after the last one would be
    lost and a broken stream would look whole: there it travels by an exception, which keeps code and details
    but no trailing metadata. Hence the error's code in the details."""

    async def call(
        self: Any, request: Any, grpc_context: GrpcContext | None = None
    ) -> AsyncIterator[ResponseT]:
        responses: Any = None
        try:
            responses = start(self, request)
            async for response in responses:
                yield response
        except Exception as failure:
            error = _fail(handler.__name__, failure, grpc_context)
            if grpc_context is not None and not hasattr(grpc_context, "abort"):
                grpc_context.set_details(with_code(error))
                raise error from None
        finally:
            if responses is not None:
                await responses.aclose()

    return _named_like(call, handler)


def context_of(meta: _Meta) -> RequestContext:
    return RequestContext.create(meta.request_id, meta.tenant, meta.deadline_ms)


def _context(service: object, request: Any) -> RequestContext:
    ctx = context_of(request.meta)
    logs.bind(ctx)
    check_request(request, _limits(service))
    return ctx


async def _checked(service: object, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        check_request(request, _limits(service))
        yield request


def _limits(service: object) -> RequestLimits:
    return getattr(service, "limits", DEFAULT_LIMITS)


def _fail(method: str, error: Exception, grpc_context: GrpcContext | None) -> KvquiltError:
    """Tells the caller; nothing but ``KvquiltError.detail`` leaves the process. Returns what the caller is
    told."""
    if not isinstance(error, KvquiltError):
        log.exception("unexpected error in %s", method)
        error = errors.InternalError(f"{method} failed unexpectedly; the service's log has the reason")
    else:
        log.info("%s failed: %s: %s", method, error.code, error.detail)
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
    """The RPC that every service has. ``application``: who says it; ``limits``: of every request to it."""

    application: str
    limits: RequestLimits = DEFAULT_LIMITS

    @unary
    async def Health(
        self, request: common_pb2.HealthRequest, ctx: RequestContext
    ) -> common_pb2.HealthResponse:
        try:
            return HEALTH.to_pb(await self.healthy(ctx))
        except KvquiltError as error:
            return HEALTH.to_pb(ServiceHealth(self.application, ready=False, detail=error.detail))

    async def healthy(self, ctx: RequestContext) -> ServiceHealth:
        """What there is to say of a service that is ready.

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
