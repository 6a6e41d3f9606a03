"""Holds a router's decision on a question, and why: in words as well."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shared.routing.costs import ReplicaCost, RoutedQuestion, Tier


class RouteReason(enum.StrEnum):
    NO_REPLICA = "no_replica"
    BLIND = "blind"
    EQUAL = "equal"
    HELD = "held"
    HOME = "home"
    SPREAD = "spread"
    HASHED = "hashed"


_WORDS: Mapping[RouteReason, str] = {
    RouteReason.NO_REPLICA: "there is no replica",
    RouteReason.BLIND: "no replica tells what it holds, so by the hash of the heaviest chunk and by load",
    RouteReason.EQUAL: "its chunks are as near to others",
    RouteReason.HELD: "it holds what is wanted, or the most of it",
    RouteReason.HOME: "it is a home of the heaviest chunk that would have to be brought",
    RouteReason.SPREAD: "waiting for a replica that holds more would take longer than loading",
    RouteReason.HASHED: "by the hash of the heaviest chunk, unless it has more than its share",
}


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """``ranks``: replicas that are as good as each other, the best rank first. ``costs``: of the replicas
    that were compared, by id; in a large fleet these are not all."""

    question: RoutedQuestion
    reason: RouteReason
    ranks: tuple[tuple[str, ...], ...] = ()
    costs: Mapping[str, ReplicaCost] = field(default_factory=dict)

    def explain(self, replica_id: str) -> str:
        """Explains why this replica, what is expected there, and where its chunks come from, in one line."""
        return "; ".join(self._said(replica_id))

    def _said(self, replica_id: str) -> Iterator[str]:
        first, because = self.ranks[0] if self.ranks else (), _WORDS[self.reason]
        if replica_id in first:
            yield f"{replica_id}: {because}"
        else:
            yield f"{replica_id}: first came {', '.join(first) or 'nobody'} ({because})"
        if (cost := self.costs.get(replica_id)) is None:
            return
        yield (
            f"{cost.total_ms:.1f} ms: waiting {cost.wait_ms:.1f}, "
            f"loading {cost.loaded_ms:.1f}, prefill {cost.prefill_ms:.1f}, "
            f"held up by answers {cost.pressure_ms:.1f}"
        )
        if cost.tiers:
            tiers = Counter(cost.tiers)
            yield "chunks: " + ", ".join(f"{tiers[tier]} {tier.value}" for tier in Tier if tiers[tier])
        if len(first) > 1 and replica_id in first:
            yield f"{len(first) - 1} as good"
