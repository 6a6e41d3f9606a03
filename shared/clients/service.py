"""A client of any service: fills in with every request who asks and until when."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from protos.kvquilt.v1 import common_pb2
from shared.clients.health import HEALTH, ServiceHealth
from shared.clients.transport import ResponseT, Transport
from shared.request import RequestContext
from shared.wire.gathering import taken_apart

ValueT = TypeVar("ValueT")


class ServiceClient:
    """Every method, of every client, raises ``shared.errors``. Closing a stream early ends the work behind
    it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        return HEALTH.of(await self.ask(ctx, "Health", common_pb2.HealthRequest(), common_pb2.HealthResponse))

    async def ask(
        self, ctx: RequestContext, method: str, request: Any, response_type: type[ResponseT]
    ) -> ResponseT:
        """``request``: without ``meta``."""
        request.meta.CopyFrom(meta_of(ctx))
        return await self._transport.unary(method, request, response_type, ctx.remaining_s)

    def follow(
        self,
        ctx: RequestContext,
        method: str,
        request: Any,
        response_type: type[ResponseT],
        value_of: Callable[[ResponseT], ValueT],
    ) -> AsyncGenerator[ValueT, None]:
        """``request``: without ``meta``."""
        request.meta.CopyFrom(meta_of(ctx))
        return taken_apart(self._transport.stream(method, request, response_type, ctx.remaining_s), value_of)


def meta_of(ctx: RequestContext) -> common_pb2.RequestMeta:
    """Says who asks, and how much of the deadline remains."""
    return common_pb2.RequestMeta(
        request_id=ctx.request_id,
        tenant=ctx.tenant,
        principal=ctx.signed,
        deadline_ms=max(1, min(int(ctx.remaining_s * 1000), 2**32 - 1)),
        traceparent=ctx.traceparent,
        priority=ctx.priority,
        stream_interval_ms=ctx.stream_interval_ms,
    )
