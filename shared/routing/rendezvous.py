"""Ranks replicas by rendezvous hashing with a load bound: what routing by chunks is measured against, and
what routes where nobody tells what it holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from shared.routing.costs import RoutedQuestion
from shared.routing.decision import RouteDecision, RouteReason
from shared.routing.homes import Homes

BOUND = 1.25
"""Of its share of the ongoing questions, as many times more as a replica may have."""
_TRIED = 16


class BoundedRendezvous:
    """The first of the heaviest chunk's replicas that has not more than its share of the ongoing questions,
    and a quarter; where all of those that are tried have more, the one that has the fewest."""

    def __init__(self) -> None:
        self._homes = Homes()

    def set_replicas(self, replica_ids: Iterable[str]) -> None:
        """All that there are now."""
        self._homes.set_replicas(sorted(replica_ids))

    def rank(self, question: RoutedQuestion, ongoing: Mapping[str, int]) -> RouteDecision:
        """``ongoing``: of every replica that may be chosen, how many questions it has. A question without
        chunks goes to any."""
        if not ongoing:
            return RouteDecision(question, RouteReason.NO_REPLICA)
        if not question.chunks:
            return RouteDecision(question, RouteReason.EQUAL, (tuple(ongoing),))
        heaviest = max(question.chunks, key=lambda chunk: (chunk.num_tokens, chunk.key))
        bound = math.ceil(BOUND * (sum(ongoing.values()) + 1) / len(ongoing))
        homes = [name for name in self._homes.of(heaviest.key, _TRIED) if name in ongoing]
        free = [name for name in homes if ongoing[name] < bound]
        full = sorted((name for name in homes if ongoing[name] >= bound), key=lambda name: ongoing[name])
        others = tuple(name for name in ongoing if name not in set(homes))
        ranks = ((name,) for name in (*free, *full))
        return RouteDecision(question, RouteReason.HASHED, (*ranks, *([others] if others else ())))
