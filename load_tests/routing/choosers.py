"""Chooses a replica for a question, in the ways that are compared: as Serve does by default, by rendezvous
hashing with a load bound, and by what chunks cost (``shared.routing``)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from load_tests.routing.machines import Replica
from load_tests.routing.plan import MOST_ONGOING, RATES, DayPlan
from shared.routing.costs import ReplicaLoad, ReplicaRates, RoutedQuestion, Tier
from shared.routing.decision import RouteDecision
from shared.routing.rates import MeasuredRates
from shared.routing.rendezvous import BoundedRendezvous
from shared.routing.reports import HeldChunks, ReportOutcome, plain
from shared.routing.router import ReplicaRouter
from shared.routing.settings import FleetReplica, RoutingCounts, RoutingSettings


class ReplicaChooser(Protocol):
    """``replicas``: those that there are, by id, with how many questions are ongoing at each, as Serve's
    routers know it."""

    def changed(self, replicas: Mapping[str, Replica]) -> None: ...

    def choose(self, question: RoutedQuestion, replicas: Mapping[str, Replica], now_ms: float) -> Replica: ...

    def answered(self, tiers: Sequence[Tier]) -> None:
        """Of the question that was chosen for last."""

    def told(self, router: int, report: HeldChunks, now_ms: float) -> bool:
        """False: it needs a snapshot."""

    def load_told(self, replica_id: str, load: ReplicaLoad, now_ms: float) -> None: ...

    @property
    def num_routers(self) -> int:
        """Number of routers that listen to reports."""


class Deaf:
    """Has what choosers have that listen to no reports."""

    num_routers = 0

    def changed(self, replicas: Mapping[str, Replica]) -> None:
        return

    def answered(self, tiers: Sequence[Tier]) -> None:
        return

    def told(self, router: int, report: HeldChunks, now_ms: float) -> bool:
        return True

    def load_told(self, replica_id: str, load: ReplicaLoad, now_ms: float) -> None:
        return


class ShortestOfTwo(Deaf):
    """Serve's default: of two replicas drawn by chance the one with fewer questions."""

    def __init__(self, plan: DayPlan) -> None:
        self._draw = random.Random(plan.seed)
        self._all: list[str] = []

    def changed(self, replicas: Mapping[str, Replica]) -> None:
        self._all = list(replicas)

    def choose(self, question: RoutedQuestion, replicas: Mapping[str, Replica], now_ms: float) -> Replica:
        drawn = self._draw.sample(self._all, min(2, len(self._all)))
        return min((replicas[name] for name in drawn), key=lambda replica: replica.ongoing)


class ByRendezvous(Deaf):
    """By ``shared.routing.rendezvous``, with exact counts; who has as many as it takes is passed over."""

    def __init__(self, plan: DayPlan) -> None:
        self._hashing = BoundedRendezvous()

    def changed(self, replicas: Mapping[str, Replica]) -> None:
        self._hashing.set_replicas(replicas)

    def choose(self, question: RoutedQuestion, replicas: Mapping[str, Replica], now_ms: float) -> Replica:
        ongoing = {name: replica.ongoing for name, replica in replicas.items()}
        ranks = self._hashing.rank(question, ongoing).ranks
        return _of_ranks([[replicas[name] for name in rank] for rank in ranks])


class ByChunkCost:
    """Ours. Every question goes through one of several routers, which know of each other's decisions only by
    what replicas tell; of a rank Serve takes the shortest queue that is not full."""

    def __init__(
        self, plan: DayPlan, rates: ReplicaRates = RATES, settings: RoutingSettings | None = None
    ) -> None:
        self.settings, self._true = settings or RoutingSettings(), rates
        self._draw = random.Random(plan.seed)
        self.routers = [ReplicaRouter(self.settings, plan.seed + i) for i in range(plan.routers)]
        self._rates, self._rates_off = MeasuredRates(), plan.rates_off
        self._last: tuple[ReplicaRouter, RouteDecision, str] | None = None

    @property
    def num_routers(self) -> int:
        return len(self.routers)

    def changed(self, replicas: Mapping[str, Replica]) -> None:
        self._rates.set_replicas({name: replica.node.node_id for name, replica in replicas.items()})
        for name in replicas:
            measured = random.Random(name).uniform(1 - self._rates_off, 1 + self._rates_off)
            self._rates.tell(name, _times(measured, self._true), 0.0)
        known = [
            FleetReplica(name, replicas[name].node.node_id, rates)
            for name, rates in self._rates.expected(0.0).items()
        ]
        for router in self.routers:
            router.set_replicas(known)

    def choose(self, question: RoutedQuestion, replicas: Mapping[str, Replica], now_ms: float) -> Replica:
        router = self._draw.choice(self.routers)
        decision = router.rank(question, now_ms)
        chosen = _of_ranks([[replicas[name] for name in rank] for rank in decision.ranks])
        router.dispatched(decision, chosen.replica_id, now_ms)
        self._last = router, decision, chosen.replica_id
        return chosen

    def answered(self, tiers: Sequence[Tier]) -> None:
        if self._last is not None:
            router, decision, replica_id = self._last
            router.answered(decision, replica_id, tiers)

    def told(self, router: int, report: HeldChunks, now_ms: float) -> bool:
        outcome = self.routers[router].told(plain(report), now_ms)
        return outcome is not ReportOutcome.SNAPSHOT_NEEDED

    def load_told(self, replica_id: str, load: ReplicaLoad, now_ms: float) -> None:
        for router in self.routers:
            router.load_told(replica_id, load, now_ms)

    def counts(self) -> RoutingCounts:
        total = RoutingCounts()
        for router in self.routers:
            total.decisions.update(router.counts.decisions)
            total.reports.update(router.counts.reports)
            total.hits += router.counts.hits
            total.misses += router.counts.misses
            total.route_stale += router.counts.route_stale
        return total


def _times(factor: float, rates: ReplicaRates) -> ReplicaRates:
    return ReplicaRates(
        {tier: factor * ms for tier, ms in rates.link_ms.items()},
        factor * rates.prefill_ms,
        factor * rates.branch_ms,
        factor * rates.find_ms,
    )


def _of_ranks(ranks: Sequence[Sequence[Replica]]) -> Replica:
    for rank in ranks:
        free = [replica for replica in rank if replica.ongoing < MOST_ONGOING]
        if free:
            return min(free, key=lambda replica: replica.ongoing)
    return min((replica for rank in ranks for replica in rank), key=lambda replica: replica.ongoing)


@dataclass(frozen=True, slots=True)
class WayOfChoosing:
    name: str
    make: Callable[[DayPlan], ReplicaChooser]


SERVE = WayOfChoosing("serve", ShortestOfTwo)
RENDEZVOUS = WayOfChoosing("rendezvous", ByRendezvous)
CHUNKS = WayOfChoosing("chunks", ByChunkCost)
WAYS = (SERVE, RENDEZVOUS, CHUNKS)
