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
