"""``kvquilt.v1.Selection``: protos to domain values, the call, and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from protos.kvquilt.v1 import common_pb2
from protos.kvquilt.v1 import selection_pb2 as pb
from services.selector.service import SelectorService
from shared.clients.health import ServiceHealth, health_to_pb
from shared.errors import KvquiltError
from shared.request import RequestContext
from shared.rpc import server_stream, unary
from shared.wire.selection import chunk_of, description_to_pb, encoded_to_pb, order_of, selected_to_pb

SERVICE = "selector"


class SelectionServicer:
    """``service`` is an error when the auxiliary model could not be loaded: every call then answers with it,
    and Health says it."""

    def __init__(self, service: SelectorService | KvquiltError) -> None:
        self._loaded = service

    @unary(pb.SelectResponse)
    async def Select(self, request: pb.SelectRequest, ctx: RequestContext) -> pb.SelectResponse:
        return selected_to_pb(await self._service.select(ctx, order_of(request)))

    @server_stream
    async def Encode(
        self, request: pb.EncodeRequest, ctx: RequestContext
    ) -> AsyncIterator[pb.EncodeResponse]:
        async with aclosing(
            self._service.encode(ctx, [chunk_of(chunk) for chunk in request.chunks])
        ) as encoded:
            async for one in encoded:
                yield encoded_to_pb(one)

    @unary(pb.DescribeAuxiliaryResponse)
    async def DescribeAuxiliary(
        self, request: pb.DescribeAuxiliaryRequest, ctx: RequestContext
    ) -> pb.DescribeAuxiliaryResponse:
        return description_to_pb(self._service.describe())

    @unary(common_pb2.HealthResponse)
    async def Health(
        self, request: common_pb2.HealthRequest, ctx: RequestContext
    ) -> common_pb2.HealthResponse:
        if isinstance(self._loaded, KvquiltError):
            return health_to_pb(ServiceHealth(SERVICE, ready=False, detail=self._loaded.detail))
        return health_to_pb(ServiceHealth(SERVICE, ready=True, facts=self._loaded.facts()))

    @property
    def _service(self) -> SelectorService:
        if isinstance(self._loaded, KvquiltError):
            raise self._loaded
        return self._loaded
