"""Searches for every question in every mode, and judges what was found: recall, reciprocal rank, refusals.

Shapes: Q questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from load_tests.retrieval.passages import Query, QuerySet
from services.gateway.config import RefusalConfig
from services.gateway.refusal import evidence
from services.retrieval.embedder import EmbedderSettings
from services.retrieval.index import MilvusIndex
from services.retrieval.milvus import connect
from services.retrieval.service import RetrievalService
from services.retrieval.transformer_embedder import load_embedder
from shared.measuring.paired import Bools, Clusters, Floats, Interval, mcnemar
from shared.measuring.report import Measurement
from shared.request import RequestContext
from shared.search import SearchHit, SearchMode

MODES = (SearchMode.DENSE, SearchMode.BM25, SearchMode.HYBRID)
_QUERIES_PER_CALL = 32
_COLLECTION = "bench"
_OPEN_S = 30.0
_DEADLINE_MS = 24 * 3600 * 1000

Found = list[tuple[SearchHit, ...]]
"""The hits of each question."""


@contextmanager
def retrieval_of(settings: EmbedderSettings, threads: int, directory: Path) -> Iterator[RetrievalService]:
    """The service itself, over an embedded Milvus in ``directory``."""
    embedder = load_embedder(settings, threads)
    milvus = connect(str(directory / "index"), "", _OPEN_S)
    service = RetrievalService(embedder, MilvusIndex(milvus, embedder.identity, embedder.dim, settings), 8)
    try:
        yield service
    finally:
        service.close()


async def search_all(
    service: RetrievalService, questions: QuerySet, modes: Sequence[SearchMode], k: int
) -> dict[SearchMode, Found]:
    """The best ``k`` hits of every question, in every mode."""
    ctx = RequestContext.create("bench", deadline_ms=_DEADLINE_MS)
    for document in questions.documents:
        await service.index(ctx, _COLLECTION, document)
    texts = [query.text for query in questions.queries]
    found: dict[SearchMode, Found] = {mode: [] for mode in modes}
    for begin in range(0, len(texts), _QUERIES_PER_CALL):
        for mode, hits in found.items():
            asked = texts[begin : begin + _QUERIES_PER_CALL]
            hits += (await service.search(ctx, _COLLECTION, asked, k, mode)).rankings
    return found


def ranks(queries: Sequence[Query], found: Found) -> Floats:
    """Of each question's own passage, from 1; infinite where it was not found. [Q]"""
    return np.array(
        [
            next((r for r, hit in enumerate(hits, 1) if hit.chunk.chunk_id == query.chunk_id), np.inf)
            for query, hits in zip(queries, found, strict=True)
        ]
    )


def measure_ranks(
    name: str, queries: Sequence[Query], by_mode: dict[SearchMode, Found], k: int
) -> Iterator[Measurement]:
    """``queries`` have a passage each. Intervals resample documents; p is the exact McNemar test of the
    passages that only one of two modes finds among ``k``."""
    clusters = Clusters(_documents(queries))
    at_k = {mode: ranks(queries, found) for mode, found in by_mode.items()}
    recall = {mode: float((rank_Q <= k).mean()) for mode, rank_Q in at_k.items()}
    others = {mode: value for mode, value in recall.items() if mode is not SearchMode.HYBRID}
    better = max(others, key=lambda mode: others[mode])
    for mode, rank_Q in at_k.items():
        baseline = recall[better] if mode is SearchMode.HYBRID else None
        yield _interval(f"{name}_recall@{k}_{mode.value}", clusters, rank_Q <= k, baseline)
        yield _interval(f"{name}_recall@3_{mode.value}", clusters, rank_Q <= 3)
        yield _interval(f"{name}_mrr@{k}_{mode.value}", clusters, 1 / rank_Q)
    hybrid_Q = at_k[SearchMode.HYBRID] <= k
    for mode in others:
        other_Q = at_k[mode] <= k
        only_hybrid, only_other = int((hybrid_Q & ~other_Q).sum()), int((other_Q & ~hybrid_Q).sum())
        p = mcnemar(only_hybrid, only_other)
        yield Measurement(
            f"{name}_only_hybrid_over_{mode.value}", only_hybrid, "questions", only_other, n=len(queries)
        )
        yield Measurement(f"{name}_p_hybrid_vs_{mode.value}", p, "p", n=len(queries))


def measure_refusals(
    name: str, queries: Sequence[Query], found: Found, config: RefusalConfig
) -> Iterator[Measurement]:
    """Of questions whose answer no document has, which should be refused, and of those whose answer is
    there."""
    evidence_Q = np.array([evidence(q.text, hits) for q, hits in zip(queries, found, strict=True)])
    there_Q = np.array([bool(query.chunk_id) for query in queries])
    for mode, least in (("lenient", config.lenient), ("strict", config.strict)):
        for what, chosen_Q in (("without_evidence", ~there_Q), ("with_evidence", there_Q)):
            clusters = Clusters(np.arange(int(chosen_Q.sum())))
            yield _interval(f"{name}_refused_{what}_{mode}", clusters, evidence_Q[chosen_Q] < least)


def _interval(
    name: str, clusters: Clusters, values_Q: Bools | Floats, baseline: float | None = None
) -> Measurement:
    found: Interval = clusters.interval(lambda mean: mean, values_Q)
    return Measurement(
        name, found.value, "fraction", baseline, min=found.low, max=found.high, n=len(values_Q)
    )


def _documents(queries: Sequence[Query]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A number for the document of each question's passage. [Q]"""
    names = [query.chunk_id.rpartition("#")[0] for query in queries]
    return np.unique(names, return_inverse=True)[1].astype(np.int64)
