"""Ranks the replicas for a question: by what it costs at each, where chunks nobody holds have their homes,
and what this router decided just before.

A decision's work does not grow with the number of chunks that there are, and hardly with that of replicas:
exact costs are taken of a few of them, those that hold the most, the homes, and some drawn by chance. In a
fleet that is not larger than that, these are all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from shared.errors import InvalidRequest
from shared.routing.costs import IN_ENGINE, ReplicaCost, ReplicaLoad, RoutedQuestion, Tier, WantedChunk
from shared.routing.decision import RouteDecision, RouteReason
from shared.routing.fleet import ChunkHolders, Fleet
from shared.routing.homes import Heat, Homes, num_homes
from shared.routing.reports import ReportOutcome, read_load
from shared.routing.settings import FleetReplica, RoutingCounts, RoutingSettings
from shared.routing.shortlist import most_first, slots_of, some

_NEAR = (*IN_ENGINE, Tier.MEMORY, Tier.DISK)
_MOST_RANKS = 3
_MEAN_KEPT = 0.98


class ReplicaRouter:
    """One router's view and decisions. Instants, ``now_ms``, are milliseconds of one clock that never goes
    back. Not thread-safe."""

    def __init__(self, settings: RoutingSettings, seed: int | None = None) -> None:
        self.counts = RoutingCounts()
        self._settings, self._draw = settings, random.Random(seed)
        self._fleet, self._homes, self._heat = Fleet(settings), Homes(), Heat()
        self._mean_work_ms = 0.0

    @property
    def blind(self) -> bool:
        """No replica or node tells what it holds: questions go by hash and load."""
        return not self._fleet.residency.any_live

    def set_replicas(self, replicas: Iterable[FleetReplica]) -> None:
        """All that there are now. One that has moved to another node is a new one.

        Raises:
            InvalidRequest: two have the same id.
        """
        self._fleet.set_replicas(replicas)
        self._homes.set_replicas(sorted(self._fleet.names))

    def told(self, message: Mapping[str, object], now_ms: float) -> ReportOutcome:
        """A report of chunks (``reports.plain``). Whatever it is, it is no error here: one that makes no
        sense is counted, and its lane counts no more until a snapshot comes."""
        outcome = self._fleet.told(message, now_ms)
        self.counts.reports[outcome] += 1
        return outcome

    def load_told(self, replica_id: str, load: ReplicaLoad, now_ms: float) -> None:
        """Of a replica that there is; of others it says nothing."""
        self._fleet.load_told(replica_id, load, now_ms)

    def load_reported(
        self, replica_id: str, message: Mapping[str, object], now_ms: float, age_ms: float = 0.0
    ) -> bool:
        """``message``: ``reports.plain_load``. False: it makes no sense, which is counted; what the replica
        said before counts for its lease."""
        try:
            load = read_load(message, age_ms)
        except InvalidRequest:
            self.counts.reports[ReportOutcome.MALFORMED] += 1
            return False
        self.load_told(replica_id, load, now_ms)
        return True

    def rank(
        self, question: RoutedQuestion, now_ms: float, candidates: Iterable[str] | None = None
    ) -> RouteDecision:
        """``candidates``: ids of the replicas that may be chosen; None: any. Those that are not known here
        come last: they are new, and nothing is known of them."""
        self._fleet.expire(now_ms)
        among, unknown = self._fleet.all, list[str]()
        if candidates is not None:
            slots = {name: self._fleet.slot(name) for name in candidates}
            unknown = [name for name, slot in slots.items() if slot is None]
            among = sum(1 << slot for slot in slots.values() if slot is not None)
        if among:
            decision = self._decide(question, among, now_ms)
        else:
            decision = RouteDecision(question, RouteReason.BLIND if unknown else RouteReason.NO_REPLICA)
        self.counts.decisions[decision.reason] += 1
        if not unknown:
            return decision
        return RouteDecision(question, decision.reason, (*decision.ranks, tuple(unknown)), decision.costs)

    def dispatched(self, decision: RouteDecision, replica_id: str, now_ms: float) -> None:
        """The question was sent there; it need not be of the first rank. One that has gone is not counted."""
        slot = self._fleet.slot(replica_id)
        if slot is None:
            return
        question = decision.question
        cost = decision.costs.get(replica_id)
        if cost is None:
            holders = [self._fleet.holders(chunk) for chunk in question.chunks]
            cost = self._fleet.cost(question, holders, slot, now_ms)
        self._mean_work_ms = _MEAN_KEPT * self._mean_work_ms + (1 - _MEAN_KEPT) * cost.work_ms
        self._fleet.sent(question, cost, now_ms)

    def answered(self, decision: RouteDecision, replica_id: str, tiers: Sequence[Tier]) -> int:
        """Hears where the chunks really came from, in the question's order. How many of them the replica was
        told to have, and had not; that is not believed any longer.

        Raises:
            InvalidRequest: not as many as the question has.
        """
        chunks = decision.question.chunks
        if len(tiers) != len(chunks):
            raise InvalidRequest(f"tiers: {len(tiers)} of {len(chunks)} chunks")
        hits = sum(tier is Tier.RESIDENT for tier in tiers)
        self.counts.hits += hits
        self.counts.misses += len(tiers) - hits
        cost = decision.costs.get(replica_id)
        stale = [
            chunk.key
            for chunk, told, found in zip(chunks, cost.tiers if cost else tiers, tiers, strict=True)
            if told is Tier.RESIDENT and found is not Tier.RESIDENT
        ]
        self._fleet.residency.contradict(replica_id, stale)
        self.counts.route_stale += len(stale)
        return len(stale)

    def check_invariants(self) -> None:
        self._fleet.check_invariants()

    def _decide(self, question: RoutedQuestion, among: int, now_ms: float) -> RouteDecision:
        holders = [self._fleet.holders(chunk) for chunk in question.chunks]

        def cost(slot: int) -> ReplicaCost:
            return self._fleet.cost(question, holders, slot, now_ms)

        costs = {slot: cost(slot) for slot in self._shortlist(holders, among)}
        weighed = self._weights(costs.values())

        heaviest = _heaviest(question, min(costs.values(), key=weighed), _NEAR)
        homes = [] if heaviest is None else self._homes_of(heaviest, among, now_ms)
        costs |= {slot: cost(slot) for slot in homes if slot not in costs}
        in_order = sorted(costs.values(), key=weighed)
        at_home = [costs[slot] for slot in homes if self._worth_waiting(costs[slot], in_order[0])]
        ranks = self._ranks(in_order, weighed)
        reason = self._reason(in_order, bool(at_home), len(ranks[0]))
        if at_home:
            first = self._ranks(sorted(at_home, key=weighed), weighed)[0]
        else:
            first = self._nearest(question, in_order[: len(ranks[0])], weighed)
        others = (tuple(name for name in rank if name not in first) for rank in ranks)
        ranks = (first, *(rank for rank in others if rank))
        return RouteDecision(question, reason, ranks, {one.replica_id: one for one in in_order})

    def _weights(self, costs: Collection[ReplicaCost]) -> Callable[[ReplicaCost], float]:
        """Weighs what an answer takes, and what it costs those that come after it: its work, by patience, and
        that of engines and of links as many times more as questions queue for them, on average.

        Otherwise routers of a fleet at its limits send questions away from what is held, which is more work,
        and so on until nothing is held that is asked for. Where it is one replica that is busy, the mean
        hardly knows, and waiting for it ends."""
        most_work_ms = max(self._mean_work_ms, *(cost.work_ms for cost in costs), 1.0)
        engines = sum(cost.wait_ms for cost in costs) / len(costs) / most_work_ms
        links = sum(cost.backlog_ms for cost in costs) / len(costs) / most_work_ms
        patience = self._settings.patience

        def weighed(cost: ReplicaCost) -> float:
            queued_ms = engines * cost.prefill_ms + links * cost.loads_ms
            return cost.total_ms + patience * cost.work_ms + queued_ms

        return weighed

    def _shortlist(self, holders: Sequence[ChunkHolders], among: int) -> set[int]:
        """Of those that hold the most in their engines, of those that hold the most on their nodes, and of
        any, a part each."""
        most = self._settings.most_compared
        if among.bit_count() <= most:
            return set(slots_of(among))
        resident = [chunk.resident | chunk.arriving for chunk in holders]
        found = set(some(among, most // 4, self._draw))
        for masks in (resident, [chunk.held for chunk in holders]):
            left = most * 3 // 8
            for level in most_first(masks, among):
                slots = list(some(level, left, self._draw))
                found.update(slots)
                left -= len(slots)
                if not left:
                    break
        return found

    def _homes_of(self, chunk: WantedChunk, among: int, now_ms: float) -> list[int]:
        """Slots. A home that may not be chosen is stood in for by the next one."""
        rate = self._heat.ask(chunk.key, now_ms)
        count = num_homes(rate, self._mean_work_ms, self._settings.most_compared // 4)
        slots = (self._fleet.slot(name) for name in self._homes.of(chunk.key, 2 * count))
        return [slot for slot in slots if slot is not None and among >> slot & 1][:count]

    def _worth_waiting(self, home: ReplicaCost, best: ReplicaCost) -> bool:
        """It has to do as little as the best one has, and does not begin later by more than that takes."""
        later_ms = home.delay_ms - best.delay_ms
        return (
            self._as_good(home.work_ms, best.work_ms) and later_ms <= self._settings.patience * best.work_ms
        )

    def _as_good(self, cost_ms: float, best_ms: float) -> bool:
        return cost_ms <= best_ms * (1 + self._settings.tolerance_share) + self._settings.tolerance_ms

    def _ranks(
        self, in_order: Sequence[ReplicaCost], weighed: Callable[[ReplicaCost], float]
    ) -> tuple[tuple[str, ...], ...]:
        """As good are those that differ by a share of the best one's work, however long all of them wait."""
        ranks: list[list[str]] = []
        most_ms = 0.0
        for cost in in_order:
            weighed_ms = weighed(cost)
            if not ranks or (len(ranks) < _MOST_RANKS and weighed_ms > most_ms):
                ranks.append([])
                share_ms = self._settings.tolerance_share * (weighed_ms - cost.delay_ms)
                most_ms = weighed_ms + share_ms + self._settings.tolerance_ms
            ranks[-1].append(cost.replica_id)
        return tuple(map(tuple, ranks))

    def _nearest(
        self,
        question: RoutedQuestion,
        as_good: Sequence[ReplicaCost],
        weighed: Callable[[ReplicaCost], float],
    ) -> tuple[str, ...]:
        """All that are as good. Where they differ by less than ``tolerance_ms``, those whose engines miss the
        least; where all miss something, the home of the heaviest chunk that they miss: with a model whose KV
        is loaded as quickly as that, replicas would otherwise come to hold the same."""
        if weighed(as_good[-1]) - weighed(as_good[0]) > self._settings.tolerance_ms:
            return tuple(cost.replica_id for cost in as_good)
        missing = {cost.replica_id: _num_missing(question, cost) for cost in as_good}
        least = min(missing.values())
        nearest = [cost for cost in as_good if missing[cost.replica_id] == least]
        names = tuple(cost.replica_id for cost in nearest)
        heaviest = _heaviest(question, nearest[0], IN_ENGINE)
        if heaviest is None or len(names) == 1:
            return names
        homes = self._homes.of(heaviest.key, self._settings.most_compared)
        return next(((name,) for name in homes if name in names), names)

    def _reason(self, in_order: Sequence[ReplicaCost], at_home: bool, num_first: int) -> RouteReason:
        best = in_order[0]
        if self.blind:
            return RouteReason.BLIND
        if at_home:
            return RouteReason.HOME
        if not self._as_good(best.work_ms, min(cost.work_ms for cost in in_order)):
            return RouteReason.SPREAD
        held = num_first < len(in_order) and any(tier in _NEAR for tier in best.tiers)
        return RouteReason.HELD if held else RouteReason.EQUAL


def _heaviest(question: RoutedQuestion, cost: ReplicaCost, there: Collection[Tier]) -> WantedChunk | None:
    """Of what comes from elsewhere. Of several the one with the largest key, so that questions whose chunks
    are nearly the same agree on one."""
    far = (chunk for chunk, tier in zip(question.chunks, cost.tiers, strict=True) if tier not in there)
    return max(far, key=lambda chunk: (chunk.num_tokens, chunk.key), default=None)


def _num_missing(question: RoutedQuestion, cost: ReplicaCost) -> int:
    """Tokens that are not in the engine, nor on their way there."""
    tiers = zip(question.chunks, cost.tiers, strict=True)
    return sum(chunk.num_tokens for chunk, tier in tiers if tier not in IN_ENGINE)
