"""The RPCs of ``kvquilt.v1.Retrieval``."""

from __future__ import annotations

from collections.abc import AsyncIterator

from protos.kvquilt.v1 import common_pb2, retrieval_pb2
from services.retrieval.service import RetrievalService
from shared.clients.health import ServiceHealth, health_to_pb
from shared.errors import KvquiltError
from shared.request import RequestContext
from shared.rpc import server_stream, unary
from shared.wire.retrieval import document_of, filter_of, hit_to_pb, mode_of, mode_to_pb

_IDS_PER_MESSAGE = 1000


class RetrievalHandlers:
    """``service`` is an error while there is no index: every call then answers with it, and Health says
    it."""

    def __init__(self, service: RetrievalService | KvquiltError) -> None:
        self._opened = service

    @property
    def _service(self) -> RetrievalService:
        if isinstance(self._opened, KvquiltError):
            raise self._opened
        return self._opened

    @unary(retrieval_pb2.SearchResponse)
    async def Search(
        self, request: retrieval_pb2.SearchRequest, ctx: RequestContext
    ) -> retrieval_pb2.SearchResponse:
        result = await self._service.search(
            ctx,
            request.collection,
            request.queries,
            request.k,
            mode_of(request.mode),
            [filter_of(f) for f in request.filters],
        )
        rankings = [retrieval_pb2.Ranking(hits=map(hit_to_pb, hits)) for hits in result.rankings]
        return retrieval_pb2.SearchResponse(rankings=rankings, mode=mode_to_pb(result.mode))

    @unary(retrieval_pb2.IndexResponse)
    async def Index(
        self, request: retrieval_pb2.IndexRequest, ctx: RequestContext
    ) -> retrieval_pb2.IndexResponse:
        changed = await self._service.index(ctx, request.collection, document_of(request))
        return retrieval_pb2.IndexResponse(num_chunks=len(request.chunks), existed=not changed)

    @unary(retrieval_pb2.UnindexResponse)
    async def Unindex(
        self, request: retrieval_pb2.UnindexRequest, ctx: RequestContext
    ) -> retrieval_pb2.UnindexResponse:
        return retrieval_pb2.UnindexResponse(
            num_chunks=await self._service.unindex(ctx, request.collection, request.document_ids)
        )

    @unary(retrieval_pb2.ListCollectionsResponse)
    async def ListCollections(
        self, request: retrieval_pb2.ListCollectionsRequest, ctx: RequestContext
    ) -> retrieval_pb2.ListCollectionsResponse:
        found = await self._service.list_collections(ctx)
        return retrieval_pb2.ListCollectionsResponse(
            collections=[
                retrieval_pb2.CollectionInfo(name=info.name, num_chunks=info.num_chunks) for info in found
            ]
        )

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

    @unary(common_pb2.HealthResponse)
    async def Health(
        self, request: common_pb2.HealthRequest, ctx: RequestContext
    ) -> common_pb2.HealthResponse:
        try:
            return health_to_pb(ServiceHealth("retrieval", True, facts=await self._service.facts()))
        except KvquiltError as error:
            return health_to_pb(ServiceHealth("retrieval", False, error.detail))
