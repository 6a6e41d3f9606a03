"""Clients of a running system, reached over gRPC at ``host:port``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from shared.clients import generation, ingest, kv_store, rag, retrieval
from shared.clients.generation import ForestClient, GenerationClient
from shared.clients.grpc_transport import CHANNEL_OPTIONS, GrpcTransport
from shared.clients.ingest import IngestClient
from shared.clients.kv_store import KvStoreClient
from shared.clients.rag import RagClient
from shared.clients.retrieval import RetrievalClient


@asynccontextmanager
async def rag_client(target: str) -> AsyncIterator[RagClient]:
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        services = (rag.SERVICE, rag.ADMIN_SERVICE)
        yield RagClient(
            *(GrpcTransport(channel, service, rag.APPLICATION, patient=True) for service in services)
        )


@asynccontextmanager
async def ingest_client(target: str) -> AsyncIterator[IngestClient]:
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        yield IngestClient(GrpcTransport(channel, ingest.SERVICE, ingest.APPLICATION))


@asynccontextmanager
async def store_client(target: str) -> AsyncIterator[KvStoreClient]:
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        yield KvStoreClient(GrpcTransport(channel, kv_store.SERVICE, kv_store.APPLICATION))


@asynccontextmanager
async def generation_client(target: str) -> AsyncIterator[GenerationClient]:
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        yield GenerationClient(
            GrpcTransport(channel, generation.SERVICE, generation.APPLICATION, patient=True)
        )


@asynccontextmanager
async def forest_client(target: str) -> AsyncIterator[ForestClient]:
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        yield ForestClient(GrpcTransport(channel, generation.SERVICE, generation.APPLICATION))


@asynccontextmanager
async def retrieval_client(target: str) -> AsyncIterator[RetrievalClient]:
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        yield RetrievalClient(GrpcTransport(channel, retrieval.SERVICE, retrieval.APPLICATION, patient=True))
