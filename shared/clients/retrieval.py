"""Client of the retrieval service."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from protos.kvquilt.v1 import retrieval_pb2
from shared.clients import health as health_rpc
from shared.clients.health import ServiceHealth, meta_of
from shared.clients.transport import Transport
from shared.request import RequestContext
from shared.search import CollectionInfo, Filter, IndexedDocument, IndexedIds, SearchMode, SearchResult
from shared.wire.retrieval import chunk_to_pb, filter_to_pb, hit_of, mode_of, mode_to_pb

SERVICE = "kvquilt.v1.Retrieval"
APPLICATION = "retrieval"


class RetrievalClient:
    """Every method raises ``shared.errors``; ``ctx`` says who asks and until when."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def search(
        self,
        ctx: RequestContext,
        collection: str,
        queries: Sequence[str],
        k: int = 0,
        mode: SearchMode = SearchMode.AUTO,
        filters: Sequence[Filter] = (),
    ) -> SearchResult:
        """One ranking per query; ``k`` 0 means the service's default."""
        request = retrieval_pb2.SearchRequest(
            meta=meta_of(ctx),
            collection=collection,
            queries=queries,
            k=k,
            mode=mode_to_pb(mode),
            filters=map(filter_to_pb, filters),
        )
        response = await self._transport.unary(
            "Search", request, retrieval_pb2.SearchResponse, ctx.remaining_s
        )
        return SearchResult(
            tuple(tuple(map(hit_of, ranking.hits)) for ranking in response.rankings), mode_of(response.mode)
        )

    async def index(self, ctx: RequestContext, collection: str, document: IndexedDocument) -> bool:
        """Returns once exactly these chunks of the document are searchable; False where they were before."""
        request = retrieval_pb2.IndexRequest(
            meta=meta_of(ctx),
            collection=collection,
            document_id=document.document_id,
            title=document.title,
            metadata=document.metadata,
            model_fingerprint=document.model_fingerprint,
            chunks=map(chunk_to_pb, document.chunks),
        )
        response = await self._transport.unary("Index", request, retrieval_pb2.IndexResponse, ctx.remaining_s)
        return not response.existed

    async def unindex(self, ctx: RequestContext, collection: str, document_ids: Sequence[str]) -> int:
        """How many chunks were removed."""
        request = retrieval_pb2.UnindexRequest(
            meta=meta_of(ctx), collection=collection, document_ids=document_ids
        )
        response = await self._transport.unary(
            "Unindex", request, retrieval_pb2.UnindexResponse, ctx.remaining_s
        )
        return response.num_chunks

    async def list_collections(self, ctx: RequestContext) -> list[CollectionInfo]:
        request = retrieval_pb2.ListCollectionsRequest(meta=meta_of(ctx))
        response = await self._transport.unary(
            "ListCollections", request, retrieval_pb2.ListCollectionsResponse, ctx.remaining_s
        )
        return [CollectionInfo(info.name, info.num_chunks) for info in response.collections]

    async def list_indexed(self, ctx: RequestContext, collection: str) -> IndexedIds:
        """The documents that the index holds; none for an unknown collection."""
        request = retrieval_pb2.ListIndexedRequest(meta=meta_of(ctx), collection=collection)
        found: list[str] = []
        other_embedder = False
        async with aclosing(
            self._transport.stream("ListIndexed", request, retrieval_pb2.ListIndexedResponse, ctx.remaining_s)
        ) as responses:
            async for response in responses:
                found.extend(response.document_ids)
                other_embedder |= response.other_embedder
        return IndexedIds(tuple(found), other_embedder)

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        return await health_rpc.health(self._transport, ctx)
