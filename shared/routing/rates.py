"""Holds how fast replicas said that they are, and says what to expect of each.

What is measured differs by what else ran meanwhile. A router that takes that for how fast a replica is sends
all that is equally far from all of them to the one that looks fastest, and the others, which measure nothing
then, look slow for good.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from statistics import median_low

from shared.routing.costs import ReplicaRates, Tier

UNSEEN = ReplicaRates({Tier.OBJECTS: 0.1}, prefill_ms=1.0, branch_ms=1.0)
"""Until any replica has seen how fast it is: loading is quicker than computing, and holding quicker than
either."""
_ANOTHER_MACHINE = 2.0
_FRESH_MS = 30_000.0


class MeasuredRates:
    """The replicas of a node share its links and processors: they are as fast as the median one. So are
    nodes, unless one differs from the median by more than a factor of two: then it is another machine. Of a
    replica that has measured nothing for half a minute nothing counts, as long as others have."""

    def __init__(self) -> None:
        self._nodes: dict[str, str] = {}
        self._told: dict[str, tuple[ReplicaRates, float]] = {}

    def set_replicas(self, nodes: Mapping[str, str]) -> None:
        """By replica the node that it is on: all that there are."""
        self._nodes = dict(nodes)
        self._told = {name: told for name, told in self._told.items() if name in nodes}

    def tell(self, replica_id: str, rates: ReplicaRates, now_ms: float) -> bool:
        """Whether it has measured something since it told the last time. Of a replica that there is."""
        if replica_id in self._told and self._told[replica_id][0] == rates:
            return False
        self._told[replica_id] = rates, now_ms
        return True

    def expected(self, now_ms: float) -> dict[str, ReplicaRates]:
        """Of all replicas."""
        fresh = {name: rates for name, (rates, at_ms) in self._told.items() if now_ms - at_ms <= _FRESH_MS}
        told = fresh or {name: rates for name, (rates, _) in self._told.items()}
        usual = _median(told.values()) if told else UNSEEN
        by_node: defaultdict[str, list[ReplicaRates]] = defaultdict(list)
        for name, rates in told.items():
            by_node[self._nodes[name]].append(rates)
        of_node = {node: _of_machine(_median(own), usual) for node, own in by_node.items()}
        return {name: of_node.get(node, usual) for name, node in self._nodes.items()}


def _median(told: Collection[ReplicaRates]) -> ReplicaRates:
    """Of what was measured: what was not is 0."""

    def middle(numbers: Iterable[float]) -> float:
        return median_low([number for number in numbers if number > 0] or [0.0])

    tiers = dict.fromkeys(tier for rates in told for tier in rates.link_ms)
    return ReplicaRates(
        {tier: middle(rates.link_ms.get(tier, 0.0) for rates in told) for tier in tiers},
        middle(rates.prefill_ms for rates in told),
        middle(rates.branch_ms for rates in told),
        middle(rates.find_ms for rates in told),
    )


def _of_machine(own: ReplicaRates, usual: ReplicaRates) -> ReplicaRates:
    def expected(own_ms: float, usual_ms: float) -> float:
        differs = own_ms > usual_ms * _ANOTHER_MACHINE or own_ms * _ANOTHER_MACHINE < usual_ms
        return own_ms if own_ms > 0 and differs else usual_ms

    return ReplicaRates(
        {tier: expected(own.link_ms.get(tier, 0.0), ms) for tier, ms in usual.link_ms.items()},
        expected(own.prefill_ms, usual.prefill_ms),
        expected(own.branch_ms, usual.branch_ms),
        expected(own.find_ms, usual.find_ms),
    )
