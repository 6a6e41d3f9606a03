"""The public KvStore service on the wire: proto in, store called, proto out. The front and the
agents differ in the store only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

from protos.kvquilt.v1 import common_pb2
from protos.kvquilt.v1 import kv_store_pb2 as pb
from shared.clients.health import health_to_pb
from shared.clients.kv_messages import (
    damaged_to_pb,
    manifest_from_pb,
    manifest_to_pb,
    stat_to_pb,
    stats_to_pb,
)
from shared.errors import InvalidRequest
from shared.kv_stores import Store
from shared.request import RequestContext
from shared.rpc import client_stream, context_of, server_stream, unary


class StoreHandlers:
    """The methods are named like the RPCs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @unary(pb.StatResponse)
    async def Stat(self, request: pb.StatRequest, ctx: RequestContext) -> pb.StatResponse:
        stats = await self._store.stat(ctx, request.chunk_ids)
        return pb.StatResponse(chunks=[stat_to_pb(s) for s in stats])

    @client_stream(pb.PutResponse)
    async def Put(self, requests: AsyncIterator[pb.PutRequest]) -> pb.PutResponse:
        stream = aiter(requests)
        header = (await anext(stream, pb.PutRequest())).header
        if not header.chunk_id:
            raise InvalidRequest("the stream must begin with a header that names the chunk")
        ctx = context_of(header.meta)
        existed = await self._store.put(
            ctx, header.chunk_id, header.size_bytes, _data_of(stream), header.replace
        )
        return pb.PutResponse(chunk_id=header.chunk_id, existed=existed)

    @server_stream
    async def Get(self, request: pb.GetRequest, ctx: RequestContext) -> AsyncIterator[pb.GetResponse]:
        ranged = request.HasField("range")
        length = request.range.length or None if ranged else None
        async with aclosing(self._store.get(ctx, request.chunk_id, request.range.offset, length)) as pieces:
            async for piece in pieces:
                yield pb.GetResponse(data=piece)

    @unary(pb.DeleteChunksResponse)
    async def Delete(self, request: pb.DeleteChunksRequest, ctx: RequestContext) -> pb.DeleteChunksResponse:
        result = await self._store.delete(ctx, request.chunk_ids)
        return pb.DeleteChunksResponse(deleted=result.deleted, referenced=result.referenced)

    @unary(pb.ListChunksResponse)
    async def List(self, request: pb.ListChunksRequest, ctx: RequestContext) -> pb.ListChunksResponse:
        page = await self._store.list_page(ctx, request.start_after, request.limit)
        return pb.ListChunksResponse(chunks=[stat_to_pb(s) for s in page.chunks], truncated=page.truncated)

    @unary(pb.PutManifestResponse)
    async def PutManifest(
        self, request: pb.PutManifestRequest, ctx: RequestContext
    ) -> pb.PutManifestResponse:
        manifest = manifest_from_pb(request.manifest)
        deleted = await self._store.put_manifest(ctx, replace(manifest, tenant=manifest.tenant or ctx.tenant))
        return pb.PutManifestResponse(deleted_chunk_ids=deleted)

    @unary(pb.GetManifestResponse)
    async def GetManifest(
        self, request: pb.GetManifestRequest, ctx: RequestContext
    ) -> pb.GetManifestResponse:
        manifest = await self._store.get_manifest(ctx, request.collection, request.document_id)
        return pb.GetManifestResponse(manifest=manifest_to_pb(manifest))

    @unary(pb.ListManifestsResponse)
    async def ListManifests(
        self, request: pb.ListManifestsRequest, ctx: RequestContext
    ) -> pb.ListManifestsResponse:
        page = await self._store.manifest_page(
            ctx, request.collection, request.start_after, request.limit, request.summary
        )
        return pb.ListManifestsResponse(
            manifests=[manifest_to_pb(m) for m in page.manifests], truncated=page.truncated
        )

    @unary(pb.DeleteManifestResponse)
    async def DeleteManifest(
        self, request: pb.DeleteManifestRequest, ctx: RequestContext
    ) -> pb.DeleteManifestResponse:
        deleted = await self._store.delete_manifest(ctx, request.collection, request.document_id)
        return pb.DeleteManifestResponse(deleted_chunk_ids=deleted)

    @unary(pb.PrefetchResponse)
    async def Prefetch(self, request: pb.PrefetchRequest, ctx: RequestContext) -> pb.PrefetchResponse:
        await self._store.prefetch(ctx, request.chunk_ids, request.node_id)
        return pb.PrefetchResponse()

    @unary(pb.StatsResponse)
    async def Stats(self, request: pb.StatsRequest, ctx: RequestContext) -> pb.StatsResponse:
        return stats_to_pb(await self._store.stats(ctx))

    @server_stream
    async def Verify(
        self, request: pb.VerifyRequest, ctx: RequestContext
    ) -> AsyncIterator[pb.VerifyProgress]:
        async with aclosing(self._store.verify(ctx, request.repair)) as updates:
            async for p in updates:
                yield pb.VerifyProgress(
                    num_copies=p.num_copies,
                    num_bytes=p.num_bytes,
                    damaged=map(damaged_to_pb, p.damaged),
                    missing_chunk_ids=p.missing,
                )

    @unary(pb.CollectGarbageResponse)
    async def CollectGarbage(
        self, request: pb.CollectGarbageRequest, ctx: RequestContext
    ) -> pb.CollectGarbageResponse:
        result = await self._store.collect_garbage(ctx, request.grace_s, request.dry_run)
        return pb.CollectGarbageResponse(
            num_chunks=result.num_chunks,
            num_bytes=result.num_bytes,
            num_kept=result.num_kept,
        )

    @unary(pb.PinResponse)
    async def Pin(self, request: pb.PinRequest, ctx: RequestContext) -> pb.PinResponse:
        return pb.PinResponse(
            pinned_bytes=await self._store.pin(ctx, request.collection, request.document_id, request.unpin)
        )

    @unary(pb.ListPinsResponse)
    async def ListPins(self, request: pb.ListPinsRequest, ctx: RequestContext) -> pb.ListPinsResponse:
        pins = await self._store.list_pins(ctx)
        return pb.ListPinsResponse(
            pins=[
                pb.PinnedDocuments(collection=p.collection, document_id=p.document_id, num_bytes=p.num_bytes)
                for p in pins
            ]
        )

    @unary(common_pb2.HealthResponse)
    async def Health(
        self, request: common_pb2.HealthRequest, ctx: RequestContext
    ) -> common_pb2.HealthResponse:
        return health_to_pb(await self._store.health(ctx))


async def _data_of(requests: AsyncIterator[pb.PutRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.WhichOneof("content") != "data":
            raise InvalidRequest("only data may follow the header")
        yield request.data
