"""Search, index, unindex: the embedder and the index together, off the event loop.

Threads: one embeds (torch's own threads work below it), one writes, a few read. Documents are embedded in
small steps, so that a query never waits for a whole document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import numpy as np

from services.retrieval.collection import MAX_K, Ranked
from services.retrieval.embedder import Embedder, Vectors
from services.retrieval.filters import expression
from services.retrieval.index import MilvusIndex
from services.retrieval.rows import MAX_FIELD_BYTES, rows_of, searchable_text
from shared.errors import FailedPrecondition, InvalidRequest
from shared.ranking import fuse_rankings
from shared.request import RequestContext, check_name
from shared.search import (
    CollectionInfo,
    Filter,
    IndexedDocument,
    IndexedIds,
    SearchHit,
    SearchMode,
    SearchResult,
)

MAX_QUERIES = 256
_TEXTS_PER_STEP = 16
_READERS = 4
ResultT = TypeVar("ResultT")


class RetrievalService:
    def __init__(self, embedder: Embedder, index: MilvusIndex, default_k: int) -> None:
        self._embedder = embedder
        self._index = index
        self._default_k = default_k
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
        _check_queries(queries)
        if k > MAX_K:
            raise InvalidRequest(f"k: at most {MAX_K}, got {k}")
        mode = self._mode(mode)
        where = expression(filters)
        k = k or self._default_k
        depth = k if mode is not SearchMode.HYBRID else min(MAX_K, max(4 * k, 64))
        halves: list[Awaitable[list[Ranked]]] = []
        if mode is not SearchMode.BM25:
            halves.append(self._dense(ctx, collection, queries, depth, where))
        if mode is not SearchMode.DENSE:
            halves.append(self._read(self._index.search_bm25, ctx.tenant, collection, queries, depth, where))
        found = await asyncio.gather(*halves)
        rankings = (
            found[0]
            if len(found) == 1
            else [
                fuse_rankings([[key for key, _ in r] for r in of_query])
                for of_query in zip(*found, strict=True)
            ]
        )
        ctx.check_deadline("searching")
        return SearchResult(await self._hits(ctx, collection, [r[:k] for r in rankings]), mode)

    async def index(self, ctx: RequestContext, collection: str, document: IndexedDocument) -> bool:
        """Makes exactly these chunks of the document searchable; False where they were already (nothing is
        embedded then)."""
        check_name("collection", collection)
        if not document.document_id:
            raise InvalidRequest("document_id: is empty")
        if not document.chunks:
            raise InvalidRequest("chunks: a document without chunks cannot be indexed; unindex it instead")
        rows_of(ctx.tenant, collection, document)  # refuses what does not fit before anything is computed
        if await self._read(self._index.is_current, ctx.tenant, collection, document):
            return False
        vectors = await self._embed(ctx, [searchable_text(document, chunk) for chunk in document.chunks])
        await self._run(self._writing, self._index.put, ctx.tenant, collection, document, vectors)
        return True

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

    async def facts(self) -> dict[str, str]:
        """For an operator."""
        bm25 = "yes" if self._index.has_bm25 else "no (dense search only)"
        return {
            "embedder": self._embedder.identity,
            "dim": str(self._embedder.dim),
            "milvus": await self._read(self._index.version),
            "bm25": bm25,
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

    async def _dense(
        self, ctx: RequestContext, collection: str, queries: Sequence[str], depth: int, where: str
    ) -> list[Ranked]:
        vectors = await self._run(self._embedding, self._embedder.embed_queries, list(queries))
        return await self._read(self._index.search_dense, ctx.tenant, collection, vectors, depth, where)

    async def _hits(
        self, ctx: RequestContext, collection: str, rankings: list[Ranked]
    ) -> tuple[tuple[SearchHit, ...], ...]:
        """A row that was removed since it was found is left out."""
        keys = list(dict.fromkeys(key for ranking in rankings for key, _ in ranking))
        rows = await self._read(self._index.fetch, ctx.tenant, collection, keys) if keys else {}
        return tuple(
            tuple(replace(rows[key], score=score) for key, score in ranking if key in rows)
            for ranking in rankings
        )

    async def _embed(self, ctx: RequestContext, texts: list[str]) -> Vectors:
        steps = []
        for begin in range(0, len(texts), _TEXTS_PER_STEP):
            ctx.check_deadline("embedding a document")
            steps.append(
                await self._run(
                    self._embedding, self._embedder.embed_documents, texts[begin : begin + _TEXTS_PER_STEP]
                )
            )
        return np.concatenate(steps)

    def _read(self, call: Callable[..., ResultT], *args: object) -> asyncio.Future[ResultT]:
        return self._run(self._reading, call, *args)

    def _run(
        self, threads: ThreadPoolExecutor, call: Callable[..., ResultT], *args: object
    ) -> asyncio.Future[ResultT]:
        return asyncio.get_running_loop().run_in_executor(threads, call, *args)


def _check_queries(queries: Sequence[str]) -> None:
    if not 1 <= len(queries) <= MAX_QUERIES:
        raise InvalidRequest(f"queries: 1 to {MAX_QUERIES}, got {len(queries)}")
    for i, query in enumerate(queries):
        if not query.strip():
            raise InvalidRequest(f"queries[{i}]: is empty")
        if len(query.encode()) > MAX_FIELD_BYTES:
            raise InvalidRequest(f"queries[{i}]: longer than {MAX_FIELD_BYTES} bytes")
