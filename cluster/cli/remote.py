"""Clients of a running system, reached over gRPC at ``host:port``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import grpc

from shared.clients import generation, ingest, kv_store, rag, retrieval
from shared.clients.grpc_transport import CHANNEL_OPTIONS, GrpcTransport

ClientT = TypeVar("ClientT")


class Door(Generic[ClientT]):
    """The way to an application's client: ``async with door(target) as client``. ``patient``: see
    ``GrpcTransport``."""

    def __init__(
        self, client_type: Callable[..., ClientT], application: str, *services: str, patient: bool = False
    ) -> None:
        self.application = application
        self._client_type, self._services, self._patient = client_type, services, patient

    @asynccontextmanager
    async def __call__(self, target: str) -> AsyncIterator[ClientT]:
        async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
            yield self._client_type(
                *(GrpcTransport(channel, name, self.application, self._patient) for name in self._services)
            )


rag_client = Door(rag.RagClient, rag.APPLICATION, rag.SERVICE, rag.ADMIN_SERVICE, patient=True)
ingest_client = Door(ingest.IngestClient, ingest.APPLICATION, ingest.SERVICE)
store_client = Door(kv_store.KvStoreClient, kv_store.APPLICATION, kv_store.SERVICE)
generation_client = Door(
    generation.GenerationClient, generation.APPLICATION, generation.SERVICE, patient=True
)
forest_client = Door(generation.ForestClient, generation.APPLICATION, generation.SERVICE)
retrieval_client = Door(retrieval.RetrievalClient, retrieval.APPLICATION, retrieval.SERVICE, patient=True)
