"""Client of the gateway: answers, and the state of the system."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from protos.kvquilt.v1 import rag_pb2
from shared.clients.grpc_transport import CHANNEL_OPTIONS, GrpcTransport
from shared.clients.health import ServiceHealth, health, health_from_pb, meta_of
from shared.clients.transport import Transport
from shared.request import RequestContext

APPLICATION = "gateway"


class RagClient:
    def __init__(self, rag: Transport, admin: Transport) -> None:
        self._rag = rag
        self._admin = admin

    @classmethod
    @asynccontextmanager
    async def connect(cls, target: str) -> AsyncIterator[RagClient]:
        """A client of the system at ``host:port``."""
        async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
            yield cls(*(GrpcTransport(channel, f"kvquilt.v1.{service}", APPLICATION) for service in ("Rag", "Admin")))

    async def status(self, ctx: RequestContext) -> list[ServiceHealth]:
        request = rag_pb2.StatusRequest(meta=meta_of(ctx))
        response = await self._admin.unary("Status", request, rag_pb2.StatusResponse, ctx.remaining_s)
        return [health_from_pb(service) for service in response.services]

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        return await health(self._rag, ctx)
