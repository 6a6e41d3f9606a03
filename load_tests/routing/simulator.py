"""Runs a day: questions come, are sent and answered, holders tell routers what changed, some nodes vanish,
every replica is restarted. By events in order of their time; nothing waits for a clock."""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from load_tests.routing.choosers import ReplicaChooser
from load_tests.routing.machines import HeldKv, Machines, Replica
from load_tests.routing.plan import LOSS, ROLL, DayPlan
from load_tests.routing.workload import Scenario, TimedQuestion, scenario_of
from shared.routing.costs import ReplicaLoad, RoutedQuestion, Tier
from shared.routing.reports import HeldChunks

_RESTART_MS = 3_000.0
_INSTANTS = 97  # holders begin to tell at as many instants of the first period


@dataclass(slots=True)
class SimulatedAnswer:
    """``share``: of the day, when it came. ``ttft_ms``: since then, however often it was sent; ``tiers``:
    where its chunks came from, and ``decided_s``: how long choosing took by this machine's clock, both of the
    last time."""

    share: float
    question: RoutedQuestion
    ttft_ms: float
    tiers: tuple[Tier, ...]
    decided_s: float


@dataclass(slots=True)
class Day:
    """``num_sent``: questions, and those of them once more that were lost; ``num_snapshots``: that routers
    asked for."""

    answers: list[SimulatedAnswer] = field(default_factory=list)
    num_sent: int = 0
    num_snapshots: int = 0


class Simulation:
    """``scenario``: by default, the plan's own."""

    def __init__(self, plan: DayPlan, chooser: ReplicaChooser, scenario: Scenario | None = None) -> None:
        self._scenario = scenario or scenario_of(plan)
        self.machines, self.now_ms = Machines(plan, self._scenario), 0.0
        self._plan, self._chooser = plan, chooser
        self._draw = random.Random(plan.seed + 1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._unanswered: dict[
            str, dict[int, tuple[TimedQuestion, float]]
        ] = {}  # and when the first token comes
        self._answers: dict[int, SimulatedAnswer] = {}
        self._day = Day()

    def run(self) -> Day:
        self._chooser.changed(self.machines.replicas)
        self._schedule()
        for arrival in self._scenario.arrivals:
            self._go_on(arrival.at_ms)
            self._send(arrival)
        self._day.answers = [answer for _, answer in sorted(self._answers.items())]
        return self._day

    def _schedule(self) -> None:
        plan = self._plan
        for i, node in enumerate(self.machines.nodes):
            self._listen_to(node.disk, i)
        for i, replica in enumerate(self.machines.replicas.values()):
            self._listen_to(replica.pool, i, replica)
        if plan.lost_share:
            step = round(1 / plan.lost_share)
            lost = [i for i in range(plan.num_replicas) if i // plan.replicas_per_node % step == 0]
            self._at(LOSS.begin * plan.day_ms, partial(self._lose, lost))
            self._at(LOSS.end * plan.day_ms, partial(self._start, lost))
        for place in range(plan.num_replicas if plan.rolls else 0):
            share = ROLL.begin + (ROLL.end - ROLL.begin) * place / plan.num_replicas
            self._at(share * plan.day_ms, partial(self._restart, place))

    def _at(self, ms: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (ms, next(self._order), event))

    def _go_on(self, until_ms: float) -> None:
        while self._events and self._events[0][0] <= until_ms:
            self.now_ms, _, event = heapq.heappop(self._events)
            event()
        self.now_ms = until_ms

    def _send(self, arrival: TimedQuestion) -> None:
        replicas, question, now_ms = self.machines.replicas, arrival.question, self.now_ms
        began_s = time.perf_counter()
        replica = self._chooser.choose(question, replicas, now_ms)
        decided_s = time.perf_counter() - began_s
        served = self.machines.serve(question, replica, now_ms)
        self._chooser.answered(served.tiers)
        replica.ongoing += 1
        self._day.num_sent += 1
        self._unanswered.setdefault(replica.replica_id, {})[arrival.number] = arrival, served.first_token_ms
        ttft_ms = served.first_token_ms - arrival.at_ms
        share = arrival.at_ms / self._plan.day_ms
        self._answers[arrival.number] = SimulatedAnswer(share, question, ttft_ms, served.tiers, decided_s)
        decoded_ms = self._draw.expovariate(1 / self._scenario.decode_ms)
        self._at(served.first_token_ms + decoded_ms, partial(self._end, replica, arrival.number))

    def _end(self, replica: Replica, number: int) -> None:
        replica.ongoing -= 1
        self._unanswered[replica.replica_id].pop(number, None)

    # --- replicas come and go ------------------------------------------------------------------------------

    def _lose(self, places: list[int]) -> None:
        """At once: what has no first token yet is sent again, and what has is lost to its caller."""
        gone = [replica for place in places if (replica := self.machines.stop(place)) is not None]
        self._chooser.changed(self.machines.replicas)
        for replica in gone:
            for arrival, first_token_ms in list(self._unanswered.get(replica.replica_id, {}).values()):
                if first_token_ms > self.now_ms:
                    self._send(arrival)

    def _start(self, places: list[int]) -> None:
        for place in places:
            if self.machines.at(place) is None:
                replica = self.machines.start(place)
                self._listen_to(replica.pool, place, replica)
        self._chooser.changed(self.machines.replicas)

    def _restart(self, place: int) -> None:
        """It is sent nothing more and ends what it has; another one comes a little later."""
        if self.machines.stop(place) is not None:
            self._chooser.changed(self.machines.replicas)
            rolled_ms = (ROLL.end - ROLL.begin) * self._plan.day_ms
            away_ms = min(_RESTART_MS, rolled_ms / 10)  # in a short day: no more than a tenth at once
            self._at(self.now_ms + away_ms, partial(self._start, [place]))

    # --- reports -------------------------------------------------------------------------------------------

    def _listen_to(self, held: HeldKv, turn: int, replica: Replica | None = None) -> None:
        if self._chooser.num_routers:
            delay_ms = self._plan.report_ms * (turn % _INSTANTS) / _INSTANTS
            self._at(self.now_ms + delay_ms, partial(self._report, held, replica))

    def _report(self, held: HeldKv, replica: Replica | None) -> None:
        """``replica``: whose pool it is, which tells of its load as well."""
        if replica is not None and replica.replica_id not in self.machines.replicas:
            return
        report = held.journal.tell()
        lag_ms = self._plan.lag_ms
        for router in range(self._chooser.num_routers):
            if self._draw.random() >= self._plan.report_loss:
                self._at(self.now_ms + lag_ms, partial(self._deliver, router, held, report))
        if replica is not None:
            told = partial(self._tell_load, replica.replica_id, replica.load(self.now_ms, lag_ms))
            self._at(self.now_ms + lag_ms, told)
        self._at(self.now_ms + self._plan.report_ms, partial(self._report, held, replica))

    def _deliver(self, router: int, held: HeldKv, report: HeldChunks) -> None:
        if not self._chooser.told(router, report, self.now_ms):
            self._day.num_snapshots += 1
            snapshot = held.journal.snapshot()
            self._at(self.now_ms + self._plan.lag_ms, partial(self._deliver, router, held, snapshot))

    def _tell_load(self, replica_id: str, load: ReplicaLoad) -> None:
        self._chooser.load_told(replica_id, load, self.now_ms)
