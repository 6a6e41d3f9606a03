"""Clients of a running system, reached over gRPC at ``host:port``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import grpc

from shared.clients import generation, ingest, kv_store, rag, retrieval
from shared.clients.grpc_transport import CHANNEL_OPTIONS, RETRY_PAUSES_S, GrpcTransport

ClientT = TypeVar("ClientT")
Connect = Callable[[str], AbstractAsyncContextManager[ClientT]]


def _connecting(
    client_type: Callable[..., ClientT], application: str, *services: str, retries_s: Sequence[float] = ()
) -> Connect[ClientT]:
    """``retries_s``: of services whose calls change nothing."""

    @asynccontextmanager
    async def connect(target: str) -> AsyncIterator[ClientT]:
        async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
            yield client_type(*(GrpcTransport(channel, name, application, retries_s) for name in services))

    return connect


rag_client = _connecting(
    rag.RagClient, rag.APPLICATION, rag.SERVICE, rag.ADMIN_SERVICE, retries_s=RETRY_PAUSES_S
)
ingest_client = _connecting(ingest.IngestClient, ingest.APPLICATION, ingest.SERVICE)
store_client = _connecting(kv_store.KvStoreClient, kv_store.APPLICATION, kv_store.SERVICE)
generation_client = _connecting(
    generation.GenerationClient, generation.APPLICATION, generation.SERVICE, retries_s=RETRY_PAUSES_S
)
forest_client = _connecting(generation.ForestClient, generation.APPLICATION, generation.SERVICE)
retrieval_client = _connecting(
    retrieval.RetrievalClient, retrieval.APPLICATION, retrieval.SERVICE, retries_s=RETRY_PAUSES_S
)
