"""Client of the retrieval service."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from protos.kvquilt.v1 import retrieval_pb2
from shared.clients.service import ServiceClient
from shared.request import RequestContext
from shared.search import (
    CollectionInfo,
    EmbeddedTexts,
    Filter,
    IndexChange,
    IndexedDocument,
    IndexedIds,
    SearchMode,
    SearchResult,
)
from shared.wire.enums import SEARCH_MODES
from shared.wire.retrieval import COLLECTION, DOCUMENT, EMBEDDED, FILTER, HIT, IDS

SERVICE = "kvquilt.v1.Retrieval"
APPLICATION = "retrieval"


class RetrievalClient(ServiceClient):
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
            collection=collection,
            queries=queries,
            k=k,
            mode=SEARCH_MODES.to_pb(mode),
            filters=map(FILTER.to_pb, filters),
        )
        response = await self.ask(ctx, "Search", request, retrieval_pb2.SearchResponse)
        rankings = tuple(tuple(map(HIT.of, ranking.hits)) for ranking in response.rankings)
        return SearchResult(rankings, SEARCH_MODES.of(response.mode))

    async def embed(self, ctx: RequestContext, texts: Sequence[str], queries: bool = False) -> EmbeddedTexts:
        """By the embedder that documents are indexed with; ``queries``: as a search embeds its own, otherwise
        as documents."""
        request = retrieval_pb2.EmbedRequest(texts=texts, queries=queries)
        return EMBEDDED.of(await self.ask(ctx, "Embed", request, retrieval_pb2.EmbedResponse))

    async def index(
        self, ctx: RequestContext, collection: str, document: IndexedDocument, anew: bool = False
    ) -> IndexChange:
        """Returns once exactly these chunks of the document are searchable. ``anew``: the whole collection is
        being indexed, and searched as before until ``adopt``."""
        request = DOCUMENT.to_pb(document)
        request.collection, request.anew = collection, anew
        response = await self.ask(ctx, "Index", request, retrieval_pb2.IndexResponse)
        return IndexChange(not response.existed, tuple(response.warnings))

    async def adopt(self, ctx: RequestContext, collection: str) -> int:
        """Searches what the configured embedder indexed from now on; returns how many others' indexes were
        dropped."""
        request = retrieval_pb2.AdoptIndexRequest(collection=collection)
        return (await self.ask(ctx, "AdoptIndex", request, retrieval_pb2.AdoptIndexResponse)).num_replaced

    async def restrict(
        self, ctx: RequestContext, collection: str, document_id: str, readers: Sequence[str]
    ) -> int:
        """Lets only those find the document, until it is indexed again, who are among ``readers`` as well;
        returns how many of its chunks have fewer readers now."""
        request = retrieval_pb2.RestrictRequest(
            collection=collection, document_id=document_id, readers=readers
        )
        return (await self.ask(ctx, "Restrict", request, retrieval_pb2.RestrictResponse)).num_chunks

    async def unindex(self, ctx: RequestContext, collection: str, document_ids: Sequence[str]) -> int:
        """Returns how many chunks were removed."""
        request = retrieval_pb2.UnindexRequest(collection=collection, document_ids=document_ids)
        return (await self.ask(ctx, "Unindex", request, retrieval_pb2.UnindexResponse)).num_chunks

    async def list_collections(self, ctx: RequestContext) -> list[CollectionInfo]:
        request = retrieval_pb2.ListCollectionsRequest()
        response = await self.ask(ctx, "ListCollections", request, retrieval_pb2.ListCollectionsResponse)
        return [COLLECTION.of(info) for info in response.collections]

    async def list_indexed(self, ctx: RequestContext, collection: str) -> IndexedIds:
        """The documents that the index holds; none for an unknown collection."""
        request = retrieval_pb2.ListIndexedRequest(collection=collection)
        found: list[str] = []
        other_embedder = False
        pages = self.follow(ctx, "ListIndexed", request, retrieval_pb2.ListIndexedResponse, IDS.of)
        async with aclosing(pages):
            async for page in pages:
                found += page.document_ids
                other_embedder |= page.other_embedder
        return IndexedIds(tuple(found), other_embedder)
