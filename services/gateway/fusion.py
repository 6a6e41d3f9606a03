"""One context out of the rankings of several questions."""

from __future__ import annotations

from collections.abc import Sequence

from shared.ranking import fuse_rankings
from shared.search import SearchHit


def fuse(rankings: Sequence[Sequence[SearchHit]], k: int, constant: int) -> tuple[SearchHit, ...]:
    """The ``k`` best chunks by reciprocal rank, each once. A single ranking keeps its order."""
    hits = {
        hit.chunk.chunk_id: hit for ranking in reversed(rankings) for hit in reversed(ranking)
    }  # the first occurrence wins
    fused = fuse_rankings([[hit.chunk.chunk_id for hit in ranking] for ranking in rankings], constant)
    return tuple(hits[chunk_id] for chunk_id, _ in fused[:k])
