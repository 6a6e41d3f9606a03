"""Chooses replicas for questions as they pass a router of Ray Serve: from messages to ``shared.routing`` and
back. Knows no Ray."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from protos.kvquilt.v1 import generation_pb2
from shared.errors import InvalidRequest
from shared.metrics import table
from shared.metrics.recorder import Metrics
from shared.routing.chains import KnownChains
from shared.routing.costs import ReplicaRates, Tier
from shared.routing.decision import RouteDecision
from shared.routing.noticeboard import lane_key
from shared.routing.rates import MeasuredRates
from shared.routing.rendezvous import BoundedRendezvous
from shared.routing.reports import HeldChunks, ReportOutcome, read_report, told_age_ms
from shared.routing.router import ReplicaRouter
from shared.routing.settings import FleetReplica, RoutingSettings
from shared.wire.routed import routed_of

log = logging.getLogger(__name__)

ROUTED_METHOD = "Generate"


class ReplicaChoice:
    """One router's. Not thread-safe. ``clock``: in seconds. ``ongoing``: how many questions a replica has; it
    is then chosen by rendezvous hashing with a bound on these, and not by costs."""

    def __init__(
        self,
        settings: RoutingSettings | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        ongoing: Callable[[str], int] | None = None,
    ) -> None:
        self._settings = settings or RoutingSettings()
        self._router = ReplicaRouter(self._settings)
        self._hashing, self._ongoing = BoundedRendezvous(), ongoing
        self._metrics, self._clock = metrics or Metrics(), clock
        self._nodes: dict[str, str] = {}
        self._chains = KnownChains()
        self._rates = MeasuredRates()
        self._known: dict[str, dict[str, tuple[int, int]]] = {}
        self._asked_ms = -self._settings.lease_ms - 1

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(self._nodes.values())

    @property
    def in_use(self) -> bool:
        """A question came within the last lease: what replicas hold is worth asking for."""
        return self._now_ms() - self._asked_ms <= self._settings.lease_ms

    def set_replicas(self, nodes: Mapping[str, str]) -> None:
        """By replica the node that it is on: all that there are."""
        if nodes == self._nodes:
            return
        self._nodes = dict(nodes)
        self._rates.set_replicas(nodes)
        self._known = {node: known for node, known in self._known.items() if node in self.nodes}
        self._hashing.set_replicas(nodes)
        self._set_fleet()

    def decide(self, method: str, request: object, replicas: Iterable[str]) -> RouteDecision | None:
        """None: whichever; it is no question, or none that can be read here. The replica says what is wrong
        with it."""
        if method != ROUTED_METHOD or not isinstance(request, generation_pb2.GenerateRequest):
            return None
        began_s = self._clock()
        try:
            question = routed_of(request, self._chains)
        except InvalidRequest:
            return None
        self._asked_ms = now_ms = self._now_ms()
        if self._ongoing is None:
            decision = self._router.rank(question, now_ms, replicas)
        else:
            decision = self._hashing.rank(question, {name: self._ongoing(name) for name in replicas})
        self._metrics.observe(table.ROUTE_SECONDS, self._clock() - began_s)
        return decision

    def sent(self, decision: RouteDecision, replica_id: str, request: generation_pb2.GenerateRequest) -> None:
        """The message says from now on why it is sent there, and what should be there."""
        if self._ongoing is None:
            self._router.dispatched(decision, replica_id, self._now_ms())
        self._metrics.add(table.ROUTE_DECISIONS, reason=decision.reason.value)
        cost = decision.costs.get(replica_id)
        request.route_held = 0 if cost is None else sum(tier is Tier.RESIDENT for tier in cost.tiers)
        request.route = decision.explain(replica_id) if request.explain else ""

    def known(self, node_id: str) -> Mapping[str, tuple[int, int]]:
        """Returns what was heard from there, as ``NoticeBoard.since`` takes it."""
        return self._known.get(node_id, {})

    def heard(self, node_id: str, notices: Iterable[Mapping[str, object]]) -> None:
        """Of a node's agent. Whatever they are, it is no error here; they are counted."""
        now_ms, known = self._now_ms(), self._known.setdefault(node_id, {})
        measured = False
        for notice in notices:
            message, load = notice.get("report"), notice.get("load")
            outcome = self._router.told(message if isinstance(message, Mapping) else {}, now_ms)
            self._metrics.add(table.ROUTE_REPORTS, outcome=outcome.value)
            if outcome is ReportOutcome.MALFORMED or not isinstance(message, Mapping):
                known.clear()  # all of it, the next time
                continue
            report = read_report(message)
            self._follow(known, report, outcome)
            replica_id = report.lane.holder
            if isinstance(load, Mapping):
                age_ms = min(told_age_ms(notice), self._settings.lease_ms)
                self._router.load_reported(replica_id, load, now_ms, age_ms)
            if replica_id in self._nodes and (told := _rates_of(notice.get("rates"))) is not None:
                measured |= self._rates.tell(replica_id, told, now_ms)
        if measured:
            self._set_fleet()

    def check_invariants(self) -> None:
        self._router.check_invariants()

    def _follow(self, known: dict[str, tuple[int, int]], report: HeldChunks, outcome: ReportOutcome) -> None:
        if outcome in (ReportOutcome.APPLIED, ReportOutcome.OLD):
            known[lane_key(report.lane)] = report.epoch, report.seq
        else:
            known.pop(lane_key(report.lane), None)

    def _set_fleet(self) -> None:
        rates = self._rates.expected(self._now_ms())
        self._router.set_replicas(
            FleetReplica(replica, node, rates[replica]) for replica, node in self._nodes.items()
        )

    def _now_ms(self) -> float:
        return self._clock() * 1e3


def _rates_of(told: object) -> ReplicaRates | None:
    """Returns the rates. What is not told to be anywhere is taken from the slowest tier that the replica has
    read; None: it has seen too little, or tells nonsense."""
    if (
        not isinstance(told, Mapping)
        or "prefill_ms" not in told
        or not isinstance(told.get("link_ms"), Mapping)
    ):
        return None
    prefill_ms, links = told["prefill_ms"], told["link_ms"]
    try:
        link_ms = {Tier(str(tier)): token_ms for tier, token_ms in links.items()}
        link_ms[Tier.OBJECTS] = max(link_ms.values())
        return ReplicaRates(link_ms, prefill_ms, branch_ms=prefill_ms, find_ms=told.get("find_ms", 0.0))
    except (InvalidRequest, ValueError, TypeError):
        return None
