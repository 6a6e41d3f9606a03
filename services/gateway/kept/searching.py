"""Searches of vector stores: what retrieval finds, as files with scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.gateway.fusion import fuse
from services.gateway.kept.attributes import Attribute, attributes_of
from services.gateway.kept.members import file_id_of, filename_of
from services.gateway.kept.stores import VectorStores, check_id
from services.gateway.ports import Retriever
from shared.errors import NotFound
from shared.request import RequestContext
from shared.search import Filter, SearchHit, SearchMode


@dataclass(frozen=True, slots=True)
class StoreSearch:
    """``least_score``: what scores less is left out."""

    store_id: str
    queries: tuple[str, ...]
    num: int = 10
    filters: tuple[Filter, ...] = ()
    least_score: float = 0.0


@dataclass(frozen=True, slots=True)
class FoundChunk:
    """``score``: how near it is to the query, 0 to 1."""

    file_id: str
    filename: str
    score: float
    attributes: Mapping[str, Attribute]
    text: str


class Searching:
    """``rrf_constant``: as of questions."""

    def __init__(self, retriever: Retriever, stores: VectorStores, rrf_constant: int) -> None:
        self._retriever, self._stores, self._constant = retriever, stores, rrf_constant

    async def search(self, ctx: RequestContext, asked: StoreSearch) -> tuple[FoundChunk, ...]:
        """Chunks, best first; of several queries by reciprocal rank.

        Raises:
            NotFound: there is no such store.
            InvalidRequest: a query or filter that cannot be.
        """
        check_id(asked.store_id)
        of = (asked.store_id, asked.queries, asked.num, SearchMode.AUTO, asked.filters)
        try:
            result = await self._retriever.search(ctx, *of)
        except NotFound:
            await self._stores.get(ctx, asked.store_id)
            return ()  # it has no documents yet
        hits = fuse(result.rankings, asked.num, self._constant)
        found = [found_of(hit) for hit in hits]
        return tuple(one for one in found if one.score >= asked.least_score)


def found_of(hit: SearchHit) -> FoundChunk:
    near = hit.score if hit.similarity is None else hit.similarity
    return FoundChunk(
        file_id_of(hit.document_id),
        filename_of(hit.document_id),
        min(1.0, max(0.0, near)),
        attributes_of(hit.metadata),
        hit.chunk.text,
    )
