"""Search, index, unindex: the embedder and the index together, off the event loop.

Threads: one embeds (torch's own threads work below it), one writes, a few read. Documents are embedded in
small steps, so that a query never waits for a whole document.

Longer than other modules: all operations share these threads, and end together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from services.retrieval.asked import AskedSearch, check_queries
from services.retrieval.collection import MAX_K, Ranked
from services.retrieval.embedder import Embedder, Vectors
from services.retrieval.embedders import Embedders, Load
from services.retrieval.filters import expression
from services.retrieval.index import MilvusIndex
from services.retrieval.reranker import Reranking
from services.retrieval.rows import in_other_language, ranked_hits
from shared.errors import FailedPrecondition, InvalidRequest, NotFound
from shared.indexable import check_indexable, searchable_text
from shared.principals.principal import Principal
from shared.ranking import fuse_scores
from shared.readers import NOBODY, check_reads_everything, checked_readers
from shared.request import RequestContext, check_name
from shared.search import (
    CollectionInfo,
    EmbeddedTexts,
    Filter,
    IndexChange,
    IndexedDocument,
    IndexedIds,
    SearchHit,
    SearchMode,
    SearchResult,
)
from shared.tracing.names import NUM_CHUNKS
from shared.tracing.spans import Attributes, span, traced

_TEXTS_PER_STEP = 16
_READERS = 4
ENGLISH_ALONE = ("en",)
_OTHER_EMBEDDER = "set retrieval.embedder to a multilingual one, or search by --search bm25"
_LEAST_DEPTH = 64  # of both rankings that hybrid fuses
ResultT = TypeVar("ResultT")


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
        asked = AskedSearch(tuple(queries), k or self._default_k, mode, where, ctx.principal)
        of = (ctx.tenant, collection, ctx.principal)
        name = (await self._read(self._index.searched, *of)).searched
        try:
            rankings = await self._search(ctx, collection, name, asked)
        except NotFound:  # another one took its place meanwhile
            name = (await self._read(self._index.searched, *of)).searched
            rankings = await self._search(ctx, collection, name, asked)
        return SearchResult(rankings, mode)

    async def embed(self, ctx: RequestContext, texts: Sequence[str], queries: bool = False) -> EmbeddedTexts:
        """By the configured embedder; ``queries``: as a search embeds its own, otherwise as documents.

        Raises:
            InvalidRequest: no text, or an empty one.
        """
        if not texts:
            raise InvalidRequest("texts: is empty")
        for i, text in enumerate(texts):
            if not text.strip():
                raise InvalidRequest(f"texts[{i}]: is empty")
        by = self._embedder
        vectors = await self._embed(ctx, by.embed_queries if queries else by.embed_documents, list(texts))
        num_tokens = await self._run(self._embedding, by.num_tokens, list(texts))
        return EmbeddedTexts(by.identity, tuple(map(tuple, vectors.tolist())), num_tokens)

    async def _search(
        self, ctx: RequestContext, collection: str, name: str, asked: AskedSearch
    ) -> tuple[tuple[SearchHit, ...], ...]:
        """In the Milvus collection ``name``."""
        hybrid = asked.mode is SearchMode.HYBRID
        num = max(asked.k, self._reranking.depth) if self._reranking else asked.k
        depth = min(MAX_K, max(4 * num, _LEAST_DEPTH)) if hybrid else num
        halves: list[Awaitable[list[Ranked]]] = []
        if asked.mode is not SearchMode.BM25:
            halves.append(
                traced(ctx, "search dense", lambda _: self._dense(name, collection, asked, depth), _num)
            )
        if asked.mode is not SearchMode.DENSE:
            sparse = (self._index.search_bm25, name, asked.queries, depth, asked.where, asked.who)
            halves.append(traced(ctx, "search sparse", lambda _: self._read(*sparse), _num))
        found = await asyncio.gather(*halves)
        rankings = found[0]
        with span(ctx, "fuse") as stage:
            if hybrid:
                rankings = [fuse_scores(both, depth, self._weights) for both in zip(*found, strict=True)]
            ctx.check_deadline("searching")
            similarities = found[0] if asked.mode is not SearchMode.BM25 else [[] for _ in rankings]
            hits = await self._hits(name, [r[:num] for r in rankings], similarities, asked.who)
            stage.set(_num(hits))
        if self._reranking is None:
            return hits
        reranked = []
        for query, found_hits in zip(asked.queries, hits, strict=True):
            ctx.check_deadline("reranking")
            with span(ctx, "rerank", {NUM_CHUNKS: len(found_hits)}):
                reranked.append(await self._run(self._embedding, self._reranking.ordered, query, found_hits))
        return tuple(found[: asked.k] for found in reranked)

    async def index(
        self, ctx: RequestContext, collection: str, document: IndexedDocument, anew: bool = False
    ) -> IndexChange:
        """Makes exactly these chunks of the document searchable, for these readers; nothing is embedded where
        they are already. ``anew``: the whole collection is being indexed, and searched as before until
        ``adopt``."""
        check_name("collection", collection)
        if not document.document_id:
            raise InvalidRequest("document_id: is empty")
        if not document.chunks:
            raise InvalidRequest("chunks: a document without chunks cannot be indexed; unindex it instead")
        check_indexable(document)
        whose = (ctx.tenant, collection, document.document_id, ctx.principal)
        await self._read(self._index.check_may_change, *whose)
        places = await self._read(self._index.places, ctx.tenant, collection)
        targets = {places.own: self._embedder}
        if places.replacing and not anew:
            targets[places.searched] = await self._embedder_of(places.searched, collection)
        changed = False
        for name, embedder in targets.items():
            of = (name, ctx.tenant, collection, document)
            if await self._read(self._index.is_current, *of):
                continue
            if await self._read(self._index.has_content, name, document):
                await self._run(self._writing, self._index.put_readers, *of)
            else:
                texts = [searchable_text(document, chunk) for chunk in document.chunks]
                vectors = await self._embed(ctx, embedder.embed_documents, texts)
                await self._run(self._writing, self._index.put, *of, vectors)
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
        many indexes were dropped.

        Raises:
            PermissionDenied: what is dropped may hold documents that the caller cannot have indexed anew.
        """
        check_name("collection", collection)
        check_reads_everything(ctx.principal, "replacing an index")
        return await self._run(self._writing, self._index.adopt, ctx.tenant, collection)

    async def unindex(self, ctx: RequestContext, collection: str, document_ids: Sequence[str]) -> int:
        """Returns how many chunks were removed; unknown documents and collections have none."""
        check_name("collection", collection)
        ids = list(dict.fromkeys(document_ids))
        return await self._run(self._writing, self._index.remove, ctx.tenant, collection, ids, ctx.principal)

    async def restrict(
        self, ctx: RequestContext, collection: str, document_id: str, readers: Sequence[str]
    ) -> int:
        """Lets only those find the document, until it is indexed again, who are among ``readers`` as well;
        returns how many of its chunks have fewer readers now. Raises ``DocumentTaken`` as ``index``."""
        check_name("collection", collection)
        groups = checked_readers("readers", readers) if tuple(readers) != NOBODY else NOBODY
        of = (ctx.tenant, collection, document_id)
        await self._read(self._index.check_may_change, *of, ctx.principal)
        return await self._run(self._writing, self._index.restrict, *of, groups)

    async def list_collections(self, ctx: RequestContext) -> list[CollectionInfo]:
        return await self._read(self._index.collections, ctx.tenant, ctx.principal)

    async def list_indexed(self, ctx: RequestContext, collection: str) -> IndexedIds:
        """The documents that the index holds; none for an unknown collection."""
        check_name("collection", collection)
        return await self._read(self._index.documents, ctx.tenant, collection, ctx.principal)

    async def shortcomings(self) -> str:
        """Lists what an operator should do something about; empty: nothing."""
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

    async def _dense(self, name: str, collection: str, asked: AskedSearch, depth: int) -> list[Ranked]:
        embedder = await self._embedder_of(name, collection)
        vectors = await self._run(self._embedding, embedder.embed_queries, list(asked.queries))
        return await self._read(self._index.search_dense, name, vectors, depth, asked.where, asked.who)

    async def _embedder_of(self, name: str, collection: str) -> Embedder:
        return await self._read(self._embedders.of, name, collection, self._index.settings_of)

    async def _hits(
        self, name: str, rankings: list[Ranked], similarities: list[Ranked], who: Principal
    ) -> tuple[tuple[SearchHit, ...], ...]:
        """A row that was removed since it was found, or lost this reader, is left out."""
        keys = list(dict.fromkeys(key for ranking in rankings for key, _ in ranking))
        rows = await self._read(self._index.fetch, name, keys, who) if keys else {}
        return ranked_hits(rows, rankings, similarities)

    async def _embed(
        self, ctx: RequestContext, embed: Callable[[Sequence[str]], Vectors], texts: list[str]
    ) -> Vectors:
        steps = []
        for begin in range(0, len(texts), _TEXTS_PER_STEP):
            ctx.check_deadline("embedding texts")
            step = texts[begin : begin + _TEXTS_PER_STEP]
            steps.append(await self._run(self._embedding, embed, step))
        return np.concatenate(steps)

    def _read(self, call: Callable[..., ResultT], *args: object) -> asyncio.Future[ResultT]:
        return self._run(self._reading, call, *args)

    def _run(
        self, threads: ThreadPoolExecutor, call: Callable[..., ResultT], *args: object
    ) -> asyncio.Future[ResultT]:
        return asyncio.get_running_loop().run_in_executor(threads, call, *args)


def _num(found: Sequence[Sequence[object]]) -> Attributes:
    return {NUM_CHUNKS: sum(map(len, found))}
