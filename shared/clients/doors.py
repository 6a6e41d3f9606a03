"""Clients of a running system, reached over gRPC at ``host:port``, or by TLS at ``grpcs://host:port``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from shared.clients import generation, ingest, kv_store, rag, retrieval
from shared.clients.channels import channel_to
from shared.clients.grpc_transport import GrpcTransport
from shared.principals.credentials import Credentials, no_credentials

ClientT = TypeVar("ClientT")
_PATIENCE_S = 5.0
"""Outlasts a service that is just being replaced, and tells soon that nobody is at an address."""


class Door(Generic[ClientT]):
    """The way to an application's client: ``async with door(target) as client``. ``patience_s``,
    ``credentials``: see ``GrpcTransport``."""

    def __init__(
        self, client_type: Callable[..., ClientT], application: str, *services: str, patience_s: float = 0.0
    ) -> None:
        self.application = application
        self._client_type, self._services, self._patience_s = client_type, services, patience_s

    @asynccontextmanager
    async def __call__(
        self,
        target: str,
        credentials: Credentials = no_credentials,
        ca_file: str = "",
        server_name: str = "",
    ) -> AsyncIterator[ClientT]:
        """``ca_file``, ``server_name``: see ``channel_to``."""
        async with channel_to(target, ca_file, server_name) as channel:
            yield self._client_type(
                *(
                    GrpcTransport(channel, name, self.application, self._patience_s, credentials)
                    for name in self._services
                )
            )


rag_client = Door(rag.RagClient, rag.APPLICATION, rag.SERVICE, rag.ADMIN_SERVICE, patience_s=_PATIENCE_S)
ingest_client = Door(ingest.IngestClient, ingest.APPLICATION, ingest.SERVICE)
store_client = Door(kv_store.KvStoreClient, kv_store.APPLICATION, kv_store.SERVICE)
generation_client = Door(
    generation.GenerationClient, generation.APPLICATION, generation.SERVICE, patience_s=_PATIENCE_S
)
forest_client = Door(generation.ForestClient, generation.APPLICATION, generation.SERVICE)
retrieval_client = Door(
    retrieval.RetrievalClient, retrieval.APPLICATION, retrieval.SERVICE, patience_s=_PATIENCE_S
)
