"""Search, index, unindex: the embedder and the index together, off the event loop.

Threads: one embeds (torch's own threads work below it), one writes, a few read. Documents are embedded in
small steps, so that a query never waits for a whole document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from services.retrieval.collection import MAX_K, Ranked
from services.retrieval.embedder import Embedder, Vectors
from services.retrieval.embedders import Embedders, Load
from services.retrieval.filters import expression
from services.retrieval.index import MilvusIndex
from services.retrieval.reranker import Reranker
from services.retrieval.rows import check_queries, in_other_language
from shared.errors import FailedPrecondition, InvalidRequest, NotFound
from shared.indexable import check_indexable, searchable_text, text_of
from shared.ranking import fuse_scores
from shared.request import RequestContext, check_name
from shared.search import (
    CollectionInfo,
    Filter,
    IndexChange,
    IndexedDocument,
    IndexedIds,
    SearchHit,
    SearchMode,
    SearchResult,
)

_TEXTS_PER_STEP = 16
_READERS = 4
ENGLISH_ALONE = ("en",)
_OTHER_EMBEDDER = "set retrieval.embedder to a multilingual one, or search by --search bm25"
_LEAST_DEPTH = 64  # of both rankings that hybrid fuses
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class _Asked:
    queries: tuple[str, ...]
    k: int
    mode: SearchMode
    where: str


@dataclass(frozen=True, slots=True)
class Reranking:
    """``by`` reads at least the first ``depth`` of what was found."""

    by: Reranker
    depth: int


class RetrievalService:
    """``load_other``: the embedder of a collection that another one than ``embedder`` has indexed."""

    def __init__(
        self,
        embedder: Embedder,
        index: MilvusIndex,
        default_k: int,
        load_other: Load | None = None,
        dense_weight: float = 0.5,
        reranking: Reranking | None = None,
    ) -> None:
        self._embedder = embedder
        self._embedders = Embedders(embedder, load_other)
        self._index = index
        self._default_k = default_k
        self._weights = (dense_weight, 1 - dense_weight)
        self._reranking = reranking
        self._embedding = ThreadPoolExecutor(1, thread_name_prefix="embed")
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="index-write")
        self._reading = ThreadPoolExecutor(_READERS, thread_name_prefix="index-read")

    async def search(
        self,
        ctx: RequestContext,
        collection: str,
        queries: Sequence[str],
        k: int = 0,
        mode: SearchMode = SearchMode.AUTO,
        filters: Sequence[Filter] = (),
    ) -> SearchResult:
        """One ranking per query; ``k`` 0 means the configured default.

        Raises:
            InvalidRequest: no query, an empty one, or a filter that cannot be.
            NotFound: the tenant has no such collection; the detail lists those it has.
            FailedPrecondition: BM25 was asked for, and this index has none.
        """
        check_name("collection", collection)
        check_queries(queries)
        if k > MAX_K:
            raise InvalidRequest(f"k: at most {MAX_K}, got {k}")
        mode = self._mode(mode)
        where = expression(filters)
        asked = _Asked(tuple(queries), k or self._default_k, mode, where)
        name = (await self._read(self._index.searched, ctx.tenant, collection)).searched
        try:
            rankings = await self._search(ctx, collection, name, asked)
        except NotFound:  # another one took its place meanwhile
            name = (await self._read(self._index.searched, ctx.tenant, collection)).searched
            rankings = await self._search(ctx, collection, name, asked)
        return SearchResult(rankings, mode)

    async def _search(
        self, ctx: RequestContext, collection: str, name: str, asked: _Asked
    ) -> tuple[tuple[SearchHit, ...], ...]:
        """In the Milvus collection ``name``."""
        hybrid = asked.mode is SearchMode.HYBRID
        num = max(asked.k, self._reranking.depth) if self._reranking else asked.k
        depth = min(MAX_K, max(4 * num, _LEAST_DEPTH)) if hybrid else num
        halves: list[Awaitable[list[Ranked]]] = []
        if asked.mode is not SearchMode.BM25:
            halves.append(self._dense(name, collection, asked, depth))
        if asked.mode is not SearchMode.DENSE:
            halves.append(self._read(self._index.search_bm25, name, asked.queries, depth, asked.where))
        found = await asyncio.gather(*halves)
        rankings = found[0]
        if hybrid:
            rankings = [fuse_scores(both, depth, self._weights) for both in zip(*found, strict=True)]
        ctx.check_deadline("searching")
        similarities = found[0] if asked.mode is not SearchMode.BM25 else [[] for _ in rankings]
        hits = await self._hits(name, [r[:num] for r in rankings], similarities)
        if self._reranking is None:
            return hits
        reranked = [
            await self._reranked(ctx, query, found, self._reranking.by)
            for query, found in zip(asked.queries, hits, strict=True)
        ]
        return tuple(found[: asked.k] for found in reranked)

    async def _reranked(
        self, ctx: RequestContext, query: str, hits: tuple[SearchHit, ...], by: Reranker
    ) -> tuple[SearchHit, ...]:
        """In the order, and with the scores, that the cross-encoder gives them."""
        ctx.check_deadline("reranking")
        scores = await self._run(self._embedding, by.scores, query, [text_of(hit) for hit in hits])
        judged = [replace(hit, score=score) for hit, score in zip(hits, scores, strict=True)]
        return tuple(sorted(judged, key=lambda hit: -hit.score))

    async def index(
        self, ctx: RequestContext, collection: str, document: IndexedDocument, anew: bool = False
    ) -> IndexChange:
        """Makes exactly these chunks of the document searchable; nothing is embedded where they are already.
        ``anew``: the whole collection is being indexed, and searched as before until
        ``adopt``."""
        check_name("collection", collection)
        if not document.document_id:
            raise InvalidRequest("document_id: is empty")
        if not document.chunks:
            raise InvalidRequest("chunks: a document without chunks cannot be indexed; unindex it instead")
        check_indexable(document)
        places = await self._read(self._index.places, ctx.tenant, collection)
        targets = {places.own: self._embedder}
        if places.replacing and not anew:
            targets[places.searched] = await self._embedder_of(places.searched, collection)
        changed = False
        for name, embedder in targets.items():
            if not await self._read(self._index.is_current, name, document):
                texts = [searchable_text(document, chunk) for chunk in document.chunks]
                vectors = await self._embed(ctx, embedder, texts)
                await self._run(
                    self._writing, self._index.put, name, ctx.tenant, collection, document, vectors
                )
                changed = True
        return IndexChange(changed, self._warnings(document) if changed else ())

    def _warnings(self, document: IndexedDocument) -> tuple[str, ...]:
        if self._reads_english_alone and in_other_language(document):
            return (
                "seems not to be English, which is all that the embedder reads: finding it by meaning is "
                f"poor; {_OTHER_EMBEDDER}",
            )
        return ()

    @property
    def _reads_english_alone(self) -> bool:
        return tuple(self._embedder.languages) == ENGLISH_ALONE

    async def adopt(self, ctx: RequestContext, collection: str) -> int:
        """Searches what the configured embedder indexed from now on, and drops what others did; returns how
        many indexes were dropped."""
        check_name("collection", collection)
        return await self._run(self._writing, self._index.adopt, ctx.tenant, collection)

    async def unindex(self, ctx: RequestContext, collection: str, document_ids: Sequence[str]) -> int:
        """Returns how many chunks were removed; unknown documents and collections have none."""
        check_name("collection", collection)
        return await self._run(
            self._writing, self._index.remove, ctx.tenant, collection, list(dict.fromkeys(document_ids))
        )

    async def list_collections(self, ctx: RequestContext) -> list[CollectionInfo]:
        return await self._read(self._index.collections, ctx.tenant)

    async def list_indexed(self, ctx: RequestContext, collection: str) -> IndexedIds:
        """The documents that the index holds; none for an unknown collection."""
        check_name("collection", collection)
        return await self._read(self._index.documents, ctx.tenant, collection)

    async def shortcomings(self) -> str:
        """What an operator should do something about; empty: nothing."""
        found = []
        if outdated := await self._read(self._index.outdated):
            found.append(
                f"{outdated} collections are indexed with another embedder than {self._embedder.identity}, "
                "and "
                "searched with that one while it can be loaded; index them anew: kvquilt retrieval rebuild"
            )
        if self._reads_english_alone:
            others, num = await self._read(self._index.in_other_languages)
            if others:
                found.append(
                    f"{others} of {num} chunks seem not to be English, which is all that the embedder "
                    f"{self._embedder.identity} reads: finding them by meaning is poor; {_OTHER_EMBEDDER}"
                )
        return "; ".join(found)

    async def facts(self) -> dict[str, str]:
        """For an operator."""
        bm25 = "yes" if self._index.has_bm25 else "no (dense search only)"
        return {
            "embedder": self._embedder.identity,
            "dim": str(self._embedder.dim),
            "milvus": await self._read(self._index.version),
            "bm25": bm25,
            **({"reranker": self._reranking.by.identity} if self._reranking else {}),
        }

    def close(self) -> None:
        for threads in (self._embedding, self._reading, self._writing):
            threads.shutdown(wait=True, cancel_futures=True)
        self._index.close()

    def _mode(self, asked: SearchMode) -> SearchMode:
        if asked is SearchMode.AUTO:
            return SearchMode.HYBRID if self._index.has_bm25 else SearchMode.DENSE
        if asked is not SearchMode.DENSE and not self._index.has_bm25:
            raise FailedPrecondition(
                f"mode: this index has no BM25 (Milvus before 2.5), so {asked.value} is not possible; "
                "use dense"
            )
        return asked

    async def _dense(self, name: str, collection: str, asked: _Asked, depth: int) -> list[Ranked]:
        embedder = await self._embedder_of(name, collection)
        vectors = await self._run(self._embedding, embedder.embed_queries, list(asked.queries))
        return await self._read(self._index.search_dense, name, vectors, depth, asked.where)

    async def _embedder_of(self, name: str, collection: str) -> Embedder:
        return await self._read(self._embedders.of, name, collection, self._index.settings_of)

    async def _hits(
        self, name: str, rankings: list[Ranked], similarities: list[Ranked]
    ) -> tuple[tuple[SearchHit, ...], ...]:
        """A row that was removed since it was found is left out."""
        keys = list(dict.fromkeys(key for ranking in rankings for key, _ in ranking))
        rows = await self._read(self._index.fetch, name, keys) if keys else {}

        def hit(key: str, score: float, similar: dict[str, float]) -> SearchHit:
            least = min(similar.values(), default=None)
            return replace(rows[key], score=score, similarity=similar.get(key, least))

        return tuple(
            tuple(hit(key, score, dict(similar)) for key, score in ranking if key in rows)
            for ranking, similar in zip(rankings, similarities, strict=True)
        )

    async def _embed(self, ctx: RequestContext, embedder: Embedder, texts: list[str]) -> Vectors:
        steps = []
        for begin in range(0, len(texts), _TEXTS_PER_STEP):
            ctx.check_deadline("embedding a document")
            steps.append(
                await self._run(
                    self._embedding, embedder.embed_documents, texts[begin : begin + _TEXTS_PER_STEP]
                )
            )
        return np.concatenate(steps)

    def _read(self, call: Callable[..., ResultT], *args: object) -> asyncio.Future[ResultT]:
        return self._run(self._reading, call, *args)

    def _run(
        self, threads: ThreadPoolExecutor, call: Callable[..., ResultT], *args: object
    ) -> asyncio.Future[ResultT]:
        return asyncio.get_running_loop().run_in_executor(threads, call, *args)
