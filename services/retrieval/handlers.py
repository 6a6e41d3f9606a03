"""The RPCs of ``kvquilt.v1.Retrieval``."""

from __future__ import annotations

from collections.abc import AsyncIterator

from protos.kvquilt.v1 import retrieval_pb2
from services.retrieval.service import RetrievalService
from shared.clients.health import ServiceHealth
from shared.request import RequestContext
from shared.rpc import LoadedServicer, server_stream, unary
from shared.wire.enums import SEARCH_MODES
from shared.wire.retrieval import COLLECTION, DOCUMENT, EMBEDDED, FILTER, HIT

_IDS_PER_MESSAGE = 1000


class RetrievalHandlers(LoadedServicer[RetrievalService]):
    application = "retrieval"

    @unary
    async def Search(
        self, request: retrieval_pb2.SearchRequest, ctx: RequestContext
    ) -> retrieval_pb2.SearchResponse:
        result = await self._service.search(
            ctx,
            request.collection,
            request.queries,
            request.k,
            SEARCH_MODES.of(request.mode),
            [FILTER.of(condition) for condition in request.filters],
        )
        rankings = [retrieval_pb2.Ranking(hits=map(HIT.to_pb, hits)) for hits in result.rankings]
        return retrieval_pb2.SearchResponse(rankings=rankings, mode=SEARCH_MODES.to_pb(result.mode))

    @unary
    async def Embed(
        self, request: retrieval_pb2.EmbedRequest, ctx: RequestContext
    ) -> retrieval_pb2.EmbedResponse:
        return EMBEDDED.to_pb(await self._service.embed(ctx, request.texts, request.queries))

    @unary
    async def Index(
        self, request: retrieval_pb2.IndexRequest, ctx: RequestContext
    ) -> retrieval_pb2.IndexResponse:
        change = await self._service.index(ctx, request.collection, DOCUMENT.of(request), request.anew)
        return retrieval_pb2.IndexResponse(
            num_chunks=len(request.chunks), existed=not change.changed, warnings=change.warnings
        )

    @unary
    async def Unindex(
        self, request: retrieval_pb2.UnindexRequest, ctx: RequestContext
    ) -> retrieval_pb2.UnindexResponse:
        return retrieval_pb2.UnindexResponse(
            num_chunks=await self._service.unindex(ctx, request.collection, request.document_ids)
        )

    @unary
    async def Restrict(
        self, request: retrieval_pb2.RestrictRequest, ctx: RequestContext
    ) -> retrieval_pb2.RestrictResponse:
        return retrieval_pb2.RestrictResponse(
            num_chunks=await self._service.restrict(
                ctx, request.collection, request.document_id, request.readers
            )
        )

    @unary
    async def AdoptIndex(
        self, request: retrieval_pb2.AdoptIndexRequest, ctx: RequestContext
    ) -> retrieval_pb2.AdoptIndexResponse:
        return retrieval_pb2.AdoptIndexResponse(
            num_replaced=await self._service.adopt(ctx, request.collection)
        )

    @unary
    async def ListCollections(
        self, request: retrieval_pb2.ListCollectionsRequest, ctx: RequestContext
    ) -> retrieval_pb2.ListCollectionsResponse:
        found = await self._service.list_collections(ctx)
        return retrieval_pb2.ListCollectionsResponse(collections=map(COLLECTION.to_pb, found))

    @server_stream
    async def ListIndexed(
        self, request: retrieval_pb2.ListIndexedRequest, ctx: RequestContext
    ) -> AsyncIterator[retrieval_pb2.ListIndexedResponse]:
        indexed = await self._service.list_indexed(ctx, request.collection)
        yield retrieval_pb2.ListIndexedResponse(other_embedder=indexed.other_embedder)
        for begin in range(0, len(indexed.document_ids), _IDS_PER_MESSAGE):
            yield retrieval_pb2.ListIndexedResponse(
                document_ids=indexed.document_ids[begin : begin + _IDS_PER_MESSAGE]
            )

    async def healthy(self, ctx: RequestContext) -> ServiceHealth:
        service = self._service
        return ServiceHealth(
            self.application, ready=True, detail=await service.shortcomings(), facts=await service.facts()
        )
