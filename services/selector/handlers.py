"""``kvquilt.v1.Selection``: protos to domain values, the call, and back."""

from __future__ import annotations

from collections.abc import AsyncIterator

from protos.kvquilt.v1 import selection_pb2 as pb
from services.selector.service import SelectorService
from shared.clients.health import ServiceHealth
from shared.request import RequestContext
from shared.rpc import LoadedServicer, server_stream, unary
from shared.streams import mapped
from shared.wire.selection import CHUNK, DESCRIPTION, ENCODED, ORDER, selected_to_pb


class SelectionServicer(LoadedServicer[SelectorService]):
    application = "selector"

    @unary
    async def Select(self, request: pb.SelectRequest, ctx: RequestContext) -> pb.SelectResponse:
        return selected_to_pb(await self._service.select(ctx, ORDER.of(request)))

    @server_stream
    def Encode(self, request: pb.EncodeRequest, ctx: RequestContext) -> AsyncIterator[pb.EncodeResponse]:
        chunks = [CHUNK.of(chunk) for chunk in request.chunks]
        return mapped(self._service.encode(ctx, chunks), ENCODED.to_pb)

    @unary
    async def DescribeAuxiliary(
        self, request: pb.DescribeAuxiliaryRequest, ctx: RequestContext
    ) -> pb.DescribeAuxiliaryResponse:
        return DESCRIPTION.to_pb(self._service.describe())

    async def healthy(self, ctx: RequestContext) -> ServiceHealth:
        return ServiceHealth(self.application, ready=True, facts=self._service.facts())
