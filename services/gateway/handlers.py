"""The RPCs of ``kvquilt.v1.Rag`` and ``kvquilt.v1.Admin``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from protos.kvquilt.v1 import common_pb2, rag_pb2
from services.gateway.pipeline import Pipeline
from services.gateway.ports import HealthSource
from services.gateway.status import system_status
from shared.clients.health import ServiceHealth, health_to_pb
from shared.request import RequestContext
from shared.rpc import server_stream, unary
from shared.wire.answer import answer_to_pb, inquiry_of

SERVICE = "gateway"


class GatewayHandlers:
    """``others``: the health of every other application; their order is the status's. ``addresses``: of those
    that another cluster serves."""

    def __init__(
        self,
        pipeline: Pipeline,
        others: Mapping[str, HealthSource],
        status_timeout_s: float,
        addresses: Mapping[str, str],
    ) -> None:
        self._pipeline = pipeline
        self._others = others
        self._status_timeout_s = status_timeout_s
        self._addresses = addresses

    @server_stream
    async def Answer(
        self, request: rag_pb2.AnswerRequest, ctx: RequestContext
    ) -> AsyncGenerator[rag_pb2.AnswerEvent, None]:
        async with aclosing(self._pipeline.answer(ctx, inquiry_of(request))) as events:
            async for event in events:
                yield answer_to_pb(event)

    @unary(rag_pb2.StatusResponse)
    async def Status(self, request: rag_pb2.StatusRequest, ctx: RequestContext) -> rag_pb2.StatusResponse:
        others = await system_status(self._others, ctx, self._status_timeout_s, self._addresses)
        return rag_pb2.StatusResponse(
            services=map(health_to_pb, [ServiceHealth(SERVICE, ready=True), *others])
        )

    @unary(common_pb2.HealthResponse)
    async def Health(
        self, request: common_pb2.HealthRequest, ctx: RequestContext
    ) -> common_pb2.HealthResponse:
        """The gateway is ready when it answers: whether it can do its work depends on services that
        ``Status`` reports."""
        return health_to_pb(ServiceHealth(SERVICE, ready=True))
