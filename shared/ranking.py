"""Several rankings into one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

KeyT = TypeVar("KeyT")
RRF_CONSTANT = 60


def fuse_rankings(
    rankings: Iterable[Sequence[KeyT]], constant: int = RRF_CONSTANT
) -> list[tuple[KeyT, float]]:
    """Reciprocal rank fusion (Cormack et al., SIGIR 2009): score(x) = sum over rankings of 1 / (constant +
    rank(x)), ranks from 1.

    Best first. Equal scores keep the order of first appearance, rank by rank, so the result is a function of
    its input alone. A key counts once per ranking, at its best rank.
    """
    ordered = [list(dict.fromkeys(ranking)) for ranking in rankings]
    scores: dict[KeyT, float] = {}
    for rank in range(max(map(len, ordered), default=0)):
        for ranking in ordered:
            if rank < len(ranking):
                key = ranking[rank]
                scores[key] = scores.get(key, 0.0) + 1.0 / (constant + rank + 1)
    return sorted(scores.items(), key=lambda item: -item[1])


def fuse_scores(
    rankings: Sequence[Sequence[tuple[KeyT, float]]], depth: int, weights: Sequence[float]
) -> list[tuple[KeyT, float]]:
    """Weighted sum of normalised scores (Bruch et al., TOIS 2023): in each ranking the best key has 1 and the
    last 0. What a ranking lacks has 0 in it; if the ranking is shorter than ``depth``, that is what it scores
    0, and so has a key that it scores 0. Unlike ranks, scores tell by how much the first is better than the
    middle.

    Rankings are best first, and so is the result. Equal scores keep the order of first appearance, rank by
    rank.
    """
    appearing = [ranking[rank][0] for rank in range(depth) for ranking in rankings if rank < len(ranking)]
    scores = dict.fromkeys(appearing, 0.0)
    for ranking, weight in zip(rankings, weights, strict=True):
        if not ranking:
            continue
        best, least = ranking[0][1], ranking[-1][1]
        if len(ranking) < min(depth, len(scores)):
            least = min(least, 0.0)
        for key, score in ranking:
            scores[key] += weight * ((score - least) / (best - least) if best > least else 1.0)
    return sorted(scores.items(), key=lambda item: -item[1])
