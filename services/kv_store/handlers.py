"""The public KvStore service on the wire: proto in, store called, proto out. The front and the
agents differ in the store only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from protos.kvquilt.v1 import kv_store_pb2 as pb
from services.kv_store.documents.naming import check_named
from shared.clients.health import ServiceHealth
from shared.errors import InvalidRequest
from shared.kv_stores import Store
from shared.kv_types import Origin
from shared.readers import check_reads_everything
from shared.request import RequestContext
from shared.rpc import HealthServicer, client_stream, context_of, server_stream, unary
from shared.streams import mapped
from shared.wire.enums import EXPECTATIONS
from shared.wire.kv_store import (
    ALIKE,
    CHUNK_STAT,
    COLLECTED,
    ITEM,
    ITEM_PAGE,
    MANIFEST,
    MANIFEST_PAGE,
    PINNED,
    STATS,
    VERIFIED,
)


class StoreHandlers(HealthServicer):
    """The methods are named like the RPCs."""

    application = "kv_store"

    def __init__(self, store: Store) -> None:
        self._store = store

    @unary
    async def Stat(self, request: pb.StatRequest, ctx: RequestContext) -> pb.StatResponse:
        stats = await self._store.stat(ctx, request.chunk_ids)
        return pb.StatResponse(chunks=map(CHUNK_STAT.to_pb, stats))

    @client_stream
    async def Put(self, requests: AsyncIterator[pb.PutRequest]) -> pb.PutResponse:
        stream = aiter(requests)
        header = (await anext(stream, pb.PutRequest())).header
        if not header.chunk_id:
            raise InvalidRequest("the stream must begin with a header that names the chunk")
        ctx = context_of(header.meta)
        origin = Origin(tuple(header.prefix_ids), header.parent_id)
        existed = await self._store.put(ctx, header.chunk_id, header.size_bytes, _data_of(stream), origin)
        return pb.PutResponse(chunk_id=header.chunk_id, existed=existed)

    @server_stream
    def Get(self, request: pb.GetRequest, ctx: RequestContext) -> AsyncIterator[pb.GetResponse]:
        ranged = request.HasField("range")
        length = request.range.length or None if ranged else None
        pieces = self._store.get(ctx, request.chunk_id, request.range.offset, length)
        return mapped(pieces, lambda piece: pb.GetResponse(data=piece))

    @unary
    async def PutManifest(
        self, request: pb.PutManifestRequest, ctx: RequestContext
    ) -> pb.PutManifestResponse:
        manifest = MANIFEST.of(request.manifest)
        manifest = replace(manifest, tenant=manifest.tenant or ctx.tenant)
        if ctx.outside:
            await check_named(self._store, ctx, manifest)
        deleted = await self._store.put_manifest(ctx, manifest)
        return pb.PutManifestResponse(deleted_chunk_ids=deleted)

    @unary
    async def CheckQuota(self, request: pb.CheckQuotaRequest, ctx: RequestContext) -> pb.CheckQuotaResponse:
        manifest = MANIFEST.of(request.manifest)
        await self._store.check_quota(
            ctx, replace(manifest, tenant=manifest.tenant or ctx.tenant), request.bytes_per_token
        )
        return pb.CheckQuotaResponse()

    @unary
    async def GetManifest(
        self, request: pb.GetManifestRequest, ctx: RequestContext
    ) -> pb.GetManifestResponse:
        manifest = await self._store.get_manifest(ctx, request.collection, request.document_id)
        return pb.GetManifestResponse(manifest=MANIFEST.to_pb(manifest))

    @unary
    async def ListManifests(
        self, request: pb.ListManifestsRequest, ctx: RequestContext
    ) -> pb.ListManifestsResponse:
        page = await self._store.manifest_page(
            ctx,
            request.collection,
            request.start_after,
            request.limit,
            request.summary,
            request.descending,
        )
        return MANIFEST_PAGE.to_pb(page)

    @unary
    async def DeleteManifest(
        self, request: pb.DeleteManifestRequest, ctx: RequestContext
    ) -> pb.DeleteManifestResponse:
        deleted = await self._store.delete_manifest(ctx, request.collection, request.document_id)
        return pb.DeleteManifestResponse(deleted_chunk_ids=deleted)

    @unary
    async def PutItem(self, request: pb.PutItemRequest, ctx: RequestContext) -> pb.Item:
        _check_items(ctx)
        expected = EXPECTATIONS.of(request.expected, "expected")
        stored = await self._store.put_item(ctx, ITEM.of(request.item), request.content, expected)
        return ITEM.to_pb(stored)

    @unary
    async def GetItem(self, request: pb.GetItemRequest, ctx: RequestContext) -> pb.GetItemResponse:
        _check_items(ctx)
        of = (request.kind, request.id, request.with_content)
        item, content = await self._store.get_item(ctx, *of)
        return pb.GetItemResponse(item=ITEM.to_pb(item), content=content)

    @unary
    async def ListItems(self, request: pb.ListItemsRequest, ctx: RequestContext) -> pb.ListItemsResponse:
        _check_items(ctx)
        of = (request.kind, request.prefix, request.start_after, request.limit, request.descending)
        return ITEM_PAGE.to_pb(await self._store.item_page(ctx, *of))

    @unary
    async def DeleteItem(self, request: pb.DeleteItemRequest, ctx: RequestContext) -> pb.DeleteItemResponse:
        _check_items(ctx)
        await self._store.delete_item(ctx, request.kind, request.id)
        return pb.DeleteItemResponse()

    @unary
    async def CountDocuments(
        self, request: pb.CountDocumentsRequest, ctx: RequestContext
    ) -> pb.CountDocumentsResponse:
        counts = await self._store.count_documents(ctx)
        return pb.CountDocumentsResponse(counts=map(ALIKE.to_pb, counts))

    @unary
    async def Readable(self, request: pb.ReadableRequest, ctx: RequestContext) -> pb.ReadableResponse:
        return pb.ReadableResponse(chunk_ids=await self._store.readable(ctx, request.chunk_ids))

    @unary
    async def Prefetch(self, request: pb.PrefetchRequest, ctx: RequestContext) -> pb.PrefetchResponse:
        await self._store.prefetch(ctx, request.chunk_ids, request.node_id)
        return pb.PrefetchResponse()

    @unary
    async def Stats(self, request: pb.StatsRequest, ctx: RequestContext) -> pb.StatsResponse:
        return STATS.to_pb(await self._store.stats(ctx))

    @server_stream
    def Verify(self, request: pb.VerifyRequest, ctx: RequestContext) -> AsyncIterator[pb.VerifyProgress]:
        return mapped(self._store.verify(ctx, request.repair, request.seal), VERIFIED.to_pb)

    @unary
    async def CollectGarbage(
        self, request: pb.CollectGarbageRequest, ctx: RequestContext
    ) -> pb.CollectGarbageResponse:
        if not request.grace_s > 0:  # True for NaN
            raise InvalidRequest(
                f"grace_s: must be above 0, got {request.grace_s:g}: KV of documents that are being ingested "
                "is no document's yet"
            )
        return COLLECTED.to_pb(await self._store.collect_garbage(ctx, request.grace_s, request.dry_run))

    @unary
    async def Pin(self, request: pb.PinRequest, ctx: RequestContext) -> pb.PinResponse:
        return pb.PinResponse(
            pinned_bytes=await self._store.pin(ctx, request.collection, request.document_id, request.unpin)
        )

    @unary
    async def ListPins(self, request: pb.ListPinsRequest, ctx: RequestContext) -> pb.ListPinsResponse:
        return pb.ListPinsResponse(pins=map(PINNED.to_pb, await self._store.list_pins(ctx)))

    async def healthy(self, ctx: RequestContext) -> ServiceHealth:
        return await self._store.health(ctx)


def _check_items(ctx: RequestContext) -> None:
    """
    Raises:
        PermissionDenied: a caller from outside asks, who does not read everything. A front door gives what is
        one principal's, such as his responses, to him alone; the store does not.
    """
    if ctx.outside:
        check_reads_everything(ctx.principal, "reading or changing items, as an archive does,")


async def _data_of(requests: AsyncIterator[pb.PutRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.WhichOneof("content") != "data":
            raise InvalidRequest("only data may follow the header")
        yield request.data
