"""Turns a handler into an RPC method: context in, errors out.

A handler is ``async def Name(self, request, ctx)``: proto in, proto out, no decisions. The decorators make of
it ``Name(self, request, grpc_context=None)``, which three callers understand: Ray Serve's gRPC ingress (the
name of the parameter is its contract), a plain ``grpc.aio`` server, and a Serve handle of another service (no
context: errors are raised as they are).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import grpc

from shared import errors
from shared import log as logs
from shared.errors import KvquiltError
from shared.request import RequestContext
from shared.status import DETAILS_KEY, to_status, with_code

log = logging.getLogger(__name__)


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
CallT = TypeVar("CallT", bound=Callable[..., Any])
_Call = Callable[..., Awaitable[ResponseT]]
_Stream = Callable[..., AsyncIterator[ResponseT]]
_Arguments = Callable[[Any], tuple[Any, ...]]


def unary(
    response_type: type[ResponseT],
) -> Callable[[Callable[[SelfT, RequestT, RequestContext], Awaitable[ResponseT]]], _Call[ResponseT]]:
    """One request, one response. ``response_type`` is what an empty answer is made of when the status tells
    the story."""
    return lambda handler: _answering(handler, response_type, _with_context)


def client_stream(
    response_type: type[ResponseT],
) -> Callable[[Callable[[SelfT, AsyncIterator[Any]], Awaitable[ResponseT]]], _Call[ResponseT]]:
    """A stream of requests, one response. The context comes from the stream's first message: the handler's to
    build."""
    return lambda handler: _answering(handler, response_type, _alone)


def server_stream(
    handler: Callable[[SelfT, RequestT, RequestContext], AsyncIterator[ResponseT]],
) -> _Stream[ResponseT]:
    """One request, a stream of responses. The handler's ``finally`` runs when the caller goes away.

    Serve hands its copy of the context over with each message, so a status set after the last one would be
    lost and a broken stream would look whole: there it travels by an exception, which keeps code and details
    but no trailing metadata. Hence the error's code in the details.
    """
    return _streaming(handler, _with_context)


def both_streams(
    handler: Callable[[SelfT, AsyncIterator[Any]], AsyncIterator[ResponseT]],
) -> _Stream[ResponseT]:
    """A stream of requests, a stream of responses. The context comes from the first request: the handler's to
    build."""
    return _streaming(handler, _alone)


def _answering(
    handler: _Call[ResponseT], response_type: type[ResponseT], arguments: _Arguments
) -> _Call[ResponseT]:
    async def call(self: Any, request: Any, grpc_context: GrpcContext | None = None) -> ResponseT:
        try:
            return await handler(self, *arguments(request))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            _fail(handler.__name__, error, grpc_context)
            return response_type()

    return _named_like(call, handler)


def _streaming(handler: _Stream[ResponseT], arguments: _Arguments) -> _Stream[ResponseT]:
    async def call(
        self: Any, request: Any, grpc_context: GrpcContext | None = None
    ) -> AsyncIterator[ResponseT]:
        told = _told(handler.__name__, lambda: handler(self, *arguments(request)), grpc_context)
        async with aclosing(told) as responses:
            async for response in responses:
                yield response

    return _named_like(call, handler)


def _with_context(request: _Request) -> tuple[_Request, RequestContext]:
    ctx = context_of(request.meta)
    logs.bind(ctx)
    return request, ctx


def _alone(requests: AsyncIterator[Any]) -> tuple[AsyncIterator[Any]]:
    return (requests,)


async def _told(
    method: str, start: Callable[[], AsyncIterator[ResponseT]], grpc_context: GrpcContext | None
) -> AsyncGenerator[ResponseT, None]:
    """The responses; an error among them becomes the call's status."""
    responses: Any = None
    try:
        responses = start()
        async for response in responses:
            yield response
    except asyncio.CancelledError:
        raise
    except Exception as failure:
        error = _fail(method, failure, grpc_context)
        if grpc_context is not None and not hasattr(grpc_context, "abort"):
            grpc_context.set_details(with_code(error))
            raise error from None
    finally:
        if responses is not None:
            await responses.aclose()


def context_of(meta: _Meta) -> RequestContext:
    return RequestContext.create(meta.request_id, meta.tenant, meta.deadline_ms)


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
