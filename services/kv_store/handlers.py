"""The KvStore service on the wire: proto in, store called, proto out. The front and the agents differ in the store only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc

from protos.kvquilt.v1 import common_pb2, kv_store_pb2_grpc
from protos.kvquilt.v1 import kv_store_pb2 as pb
from shared.clients.grpc_transport import CHANNEL_OPTIONS
from shared.clients.health import health_to_pb
from shared.clients.kv_store import manifest_from_pb, manifest_to_pb
from shared.errors import InvalidRequest
from shared.kv_types import ChunkStat, KvStore
from shared.request import RequestContext
from shared.rpc import client_stream, context_of, server_stream, unary


class KvStoreHandlers:
    """The methods are named like the RPCs."""

    def __init__(self, store: KvStore) -> None:
        self._store = store

    @unary(pb.StatResponse)
    async def Stat(self, request: pb.StatRequest, ctx: RequestContext) -> pb.StatResponse:
        stats = await self._store.stat(ctx, request.chunk_ids)
        return pb.StatResponse(chunks=[_stat_to_pb(s) for s in stats])

    @unary(pb.OpenResponse)
    async def Open(self, request: pb.OpenRequest, ctx: RequestContext) -> pb.OpenResponse:
        opened = await self._store.open(ctx, request.chunk_ids, request.node_id)
        return pb.OpenResponse(
            chunks=[
                pb.OpenedChunk(
                    chunk_id=o.chunk_id,
                    exists=o.exists,
                    path=o.path,
                    size_bytes=o.size_bytes,
                    layers=[pb.ByteRange(offset=offset, length=length) for offset, length in o.layers],
                )
                for o in opened
            ]
        )

    @client_stream(pb.PutResponse)
    async def Put(self, requests: AsyncIterator[pb.PutRequest]) -> pb.PutResponse:
        stream = aiter(requests)
        header = (await anext(stream, pb.PutRequest())).header
        if not header.chunk_id:
            raise InvalidRequest("the stream must begin with a header that names the chunk")
        existed = await self._store.put(context_of(header.meta), header.chunk_id, header.size_bytes, _data_of(stream))
        return pb.PutResponse(chunk_id=header.chunk_id, existed=existed)

    @server_stream
    async def Get(self, request: pb.GetRequest, ctx: RequestContext) -> AsyncIterator[pb.GetResponse]:
        ranged = request.HasField("range")
        length = request.range.length or None if ranged else None
        async with aclosing(self._store.get(ctx, request.chunk_id, request.range.offset, length)) as pieces:
            async for piece in pieces:
                yield pb.GetResponse(data=piece)

    @unary(pb.StageResponse)
    async def Stage(self, request: pb.StageRequest, ctx: RequestContext) -> pb.StageResponse:
        return pb.StageResponse(directory=await self._store.stage(ctx, request.node_id))

    @unary(pb.PutResponse)
    async def Adopt(self, request: pb.AdoptRequest, ctx: RequestContext) -> pb.PutResponse:
        existed = await self._store.adopt(ctx, request.chunk_id, request.node_id, request.path, request.replace)
        return pb.PutResponse(chunk_id=request.chunk_id, existed=existed)

    @unary(pb.DeleteChunksResponse)
    async def Delete(self, request: pb.DeleteChunksRequest, ctx: RequestContext) -> pb.DeleteChunksResponse:
        result = await self._store.delete(ctx, request.chunk_ids)
        return pb.DeleteChunksResponse(deleted=result.deleted, referenced=result.referenced)

    @unary(pb.ListChunksResponse)
    async def List(self, request: pb.ListChunksRequest, ctx: RequestContext) -> pb.ListChunksResponse:
        page = await self._store.list_page(ctx, request.start_after, request.limit)
        return pb.ListChunksResponse(chunks=[_stat_to_pb(s) for s in page.chunks], truncated=page.truncated)

    @unary(pb.PutManifestResponse)
    async def PutManifest(self, request: pb.PutManifestRequest, ctx: RequestContext) -> pb.PutManifestResponse:
        manifest = manifest_from_pb(request.manifest)
        deleted = await self._store.put_manifest(ctx, replace(manifest, tenant=manifest.tenant or ctx.tenant))
        return pb.PutManifestResponse(deleted_chunk_ids=deleted)

    @unary(pb.GetManifestResponse)
    async def GetManifest(self, request: pb.GetManifestRequest, ctx: RequestContext) -> pb.GetManifestResponse:
        manifest = await self._store.get_manifest(ctx, request.collection, request.document_id)
        return pb.GetManifestResponse(manifest=manifest_to_pb(manifest))

    @unary(pb.ListManifestsResponse)
    async def ListManifests(self, request: pb.ListManifestsRequest, ctx: RequestContext) -> pb.ListManifestsResponse:
        page = await self._store.manifest_page(ctx, request.collection, request.start_after, request.limit, request.summary)
        return pb.ListManifestsResponse(manifests=[manifest_to_pb(m) for m in page.manifests], truncated=page.truncated)

    @unary(pb.DeleteManifestResponse)
    async def DeleteManifest(self, request: pb.DeleteManifestRequest, ctx: RequestContext) -> pb.DeleteManifestResponse:
        deleted = await self._store.delete_manifest(ctx, request.collection, request.document_id)
        return pb.DeleteManifestResponse(deleted_chunk_ids=deleted)

    @unary(common_pb2.HealthResponse)
    async def Health(self, request: common_pb2.HealthRequest, ctx: RequestContext) -> common_pb2.HealthResponse:
        return health_to_pb(await self._store.health(ctx))


async def start_server(handlers: KvStoreHandlers, host: str, port: int = 0) -> tuple[grpc.aio.Server, str]:
    """A running gRPC server and its address; port 0: one that is free. Keep the server, or it stops.

    Raises:
        RuntimeError: the port is taken.
    """
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    add: Any = kv_store_pb2_grpc.add_KvStoreServicer_to_server
    add(handlers, server)
    bracketed = f"[{host}]" if ":" in host else host
    bound = server.add_insecure_port(f"{bracketed}:{port}")
    await server.start()
    return server, f"{bracketed}:{bound}"


async def _data_of(requests: AsyncIterator[pb.PutRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.WhichOneof("content") != "data":
            raise InvalidRequest("only data may follow the header")
        yield request.data


def _stat_to_pb(s: ChunkStat) -> pb.ChunkStat:
    return pb.ChunkStat(chunk_id=s.chunk_id, exists=s.exists, size_bytes=s.size_bytes, modified_s=s.modified_s)
