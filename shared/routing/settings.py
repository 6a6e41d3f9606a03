"""Holds what a router is set to, what it is told of replicas, and what it counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from shared.generation.ranges import check_range
from shared.routing.costs import ReplicaRates, check_time
from shared.routing.decision import RouteReason
from shared.routing.reports import ReportOutcome


@dataclass(frozen=True, slots=True)
class RoutingSettings:
    """
    tolerance_share, tolerance_ms: costs that differ by less are as good as each other.
    patience: how much longer a question may take at a replica, as a share of the loading and prefill that it
    saves there, since those hold others up, where nobody queues; more where many do.
    kept_ms: how long a router's own decisions count.
    lease_ms: how long what a holder told counts without another word from it.
    most_compared: replicas whose costs are taken for one question.
    """

    tolerance_share: float = 0.05
    tolerance_ms: float = 1.0
    patience: float = 0.25
    kept_ms: float = 2_000.0
    lease_ms: float = 10_000.0
    most_compared: int = 24

    def __post_init__(self) -> None:
        """
        Raises:
            InvalidRequest: names the setting and its range.
        """
        for name in ("tolerance_ms", "kept_ms", "lease_ms"):
            check_time(name, getattr(self, name))
        rule = "1 ms or more, and longer than it takes a holder to tell"
        check_range("lease_ms", self.lease_ms, self.lease_ms >= 1, rule)
        for name in ("tolerance_share", "patience"):
            share = getattr(self, name)
            check_range(name, share, type(share) in (int, float) and 0 <= share <= 100, "0 to 100")
        most = self.most_compared
        check_range("most_compared", most, type(most) is int and 4 <= most <= 4096, "4 to 4096")


@dataclass(frozen=True, slots=True)
class FleetReplica:
    """A replica, on which node, and how fast it is."""

    replica_id: str
    node_id: str
    rates: ReplicaRates


@dataclass(slots=True)
class RoutingCounts:
    """``hits``, ``misses``: chunks that the replica had, or had not; ``route_stale``: those that it was told
    to have, and had not."""

    decisions: Counter[RouteReason] = field(default_factory=Counter)
    reports: Counter[ReportOutcome] = field(default_factory=Counter)
    hits: int = 0
    misses: int = 0
    route_stale: int = 0
