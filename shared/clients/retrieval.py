"""Client of the retrieval service, and the translation between its values and its messages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from protos.kvquilt.v1 import retrieval_pb2
from shared.clients import health as health_rpc
from shared.clients.health import ServiceHealth, meta_of
from shared.clients.transport import Transport
from shared.request import RequestContext
from shared.search import (
    CollectionInfo,
    Filter,
    FilterOp,
    IndexedChunk,
    IndexedDocument,
    IndexedIds,
    SearchHit,
    SearchMode,
    SearchResult,
)

SERVICE = "kvquilt.v1.Retrieval"
APPLICATION = "retrieval"

_PB_MODE = {
    SearchMode.AUTO: retrieval_pb2.SEARCH_MODE_UNSPECIFIED,
    SearchMode.DENSE: retrieval_pb2.SEARCH_MODE_DENSE,
    SearchMode.BM25: retrieval_pb2.SEARCH_MODE_BM25,
    SearchMode.HYBRID: retrieval_pb2.SEARCH_MODE_HYBRID,
}
_MODE = {pb: mode for mode, pb in _PB_MODE.items()}
_PB_OP = {
    FilterOp.EQ: retrieval_pb2.Filter.OP_EQ,
    FilterOp.NE: retrieval_pb2.Filter.OP_NE,
    FilterOp.IN: retrieval_pb2.Filter.OP_IN,
    FilterOp.PREFIX: retrieval_pb2.Filter.OP_PREFIX,
}
_OP = {pb: op for op, pb in _PB_OP.items()} | {retrieval_pb2.Filter.OP_UNSPECIFIED: FilterOp.EQ}


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
            chunks=map(_chunk_to_pb, document.chunks),
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


def mode_of(mode: retrieval_pb2.SearchMode) -> SearchMode:
    """Unknown numbers count as unspecified, as proto3 asks for."""
    return _MODE.get(mode, SearchMode.AUTO)


def mode_to_pb(mode: SearchMode) -> retrieval_pb2.SearchMode:
    return _PB_MODE[mode]


def filter_of(message: retrieval_pb2.Filter) -> Filter:
    return Filter(message.field, _OP.get(message.op, FilterOp.EQ), tuple(message.values))


def filter_to_pb(condition: Filter) -> retrieval_pb2.Filter:
    return retrieval_pb2.Filter(field=condition.field, op=_PB_OP[condition.op], values=condition.values)


def document_of(request: retrieval_pb2.IndexRequest) -> IndexedDocument:
    return IndexedDocument(
        document_id=request.document_id,
        title=request.title,
        model_fingerprint=request.model_fingerprint,
        chunks=tuple(
            IndexedChunk(c.chunk_id, c.text, tuple(c.token_ids), c.heading, c.char_start, c.char_end)
            for c in request.chunks
        ),
        metadata=dict(request.metadata),
    )


def hit_to_pb(hit: SearchHit) -> retrieval_pb2.SearchHit:
    chunk = hit.chunk
    return retrieval_pb2.SearchHit(
        chunk_id=chunk.chunk_id,
        document_id=hit.document_id,
        title=hit.title,
        text=chunk.text,
        token_ids=chunk.token_ids,
        score=hit.score,
        heading=chunk.heading,
        char_start=chunk.char_start,
        char_end=chunk.char_end,
        metadata=hit.metadata,
        model_fingerprint=hit.model_fingerprint,
    )


def hit_of(message: retrieval_pb2.SearchHit) -> SearchHit:
    chunk = IndexedChunk(
        message.chunk_id,
        message.text,
        tuple(message.token_ids),
        message.heading,
        message.char_start,
        message.char_end,
    )
    return SearchHit(
        chunk,
        message.document_id,
        message.title,
        message.model_fingerprint,
        message.score,
        dict(message.metadata),
    )


def _chunk_to_pb(chunk: IndexedChunk) -> retrieval_pb2.IndexedChunk:
    return retrieval_pb2.IndexedChunk(
        chunk_id=chunk.chunk_id,
        text=chunk.text,
        token_ids=chunk.token_ids,
        heading=chunk.heading,
        char_start=chunk.char_start,
        char_end=chunk.char_end,
    )
