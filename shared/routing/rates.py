"""Holds how fast replicas said that they are, and says what to expect of each.

What is measured differs by what else ran meanwhile. A router that takes that for how fast a replica is sends
all that is equally far from all of them to the one that looks fastest, and the others, which measure nothing
then, look slow for good.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median_low

from shared.routing.costs import ReplicaRates, Tier

UNSEEN = ReplicaRates({Tier.OBJECTS: 0.1}, prefill_ms=1.0, branch_ms=1.0)
"""Until any replica has seen how fast it is: loading is quicker than computing, and holding quicker than
either."""
_ANOTHER_MACHINE = 2.0
_FRESH_MS = 30_000.0


class MeasuredRates:
    """A number is the median of all replicas', unless a replica's own differs from that by more than a factor
    of two: then it is of another machine. Of a replica that has measured nothing for half a minute nothing is
    its own."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[ReplicaRates, float]] = {}

    def set_replicas(self, replica_ids: Iterable[str]) -> None:
        """Forgets all others."""
        self._told = {name: self._told[name] for name in replica_ids if name in self._told}

    def tell(self, replica_id: str, rates: ReplicaRates, now_ms: float) -> bool:
        """Whether it has measured something since it told the last time."""
        if replica_id in self._told and self._told[replica_id][0] == rates:
            return False
        self._told[replica_id] = rates, now_ms
        return True

    def of(self, replica_ids: Iterable[str], now_ms: float) -> dict[str, ReplicaRates]:
        fresh = {name: rates for name, (rates, at_ms) in self._told.items() if now_ms - at_ms <= _FRESH_MS}
        usual = _median(fresh.values() if fresh else [rates for rates, _ in self._told.values()])
        return {name: _expected(fresh.get(name), usual) for name in replica_ids}


def _median(told: Iterable[ReplicaRates]) -> ReplicaRates:
    told = list(told)
    if not told:
        return UNSEEN
    tiers = dict.fromkeys(tier for rates in told for tier in rates.link_ms)
    return ReplicaRates(
        {tier: _middle(rates.link_ms.get(tier, 0.0) for rates in told) for tier in tiers},
        _middle(rates.prefill_ms for rates in told),
        _middle(rates.branch_ms for rates in told),
        _middle(rates.find_ms for rates in told),
    )


def _expected(own: ReplicaRates | None, usual: ReplicaRates) -> ReplicaRates:
    if own is None:
        return usual
    return ReplicaRates(
        {tier: _of_machine(own.link_ms.get(tier, 0.0), ms) for tier, ms in usual.link_ms.items()},
        _of_machine(own.prefill_ms, usual.prefill_ms),
        _of_machine(own.branch_ms, usual.branch_ms),
        _of_machine(own.find_ms, usual.find_ms),
    )


def _middle(numbers: Iterable[float]) -> float:
    """Of those that were measured: what was not is 0."""
    return median_low(sorted(number for number in numbers if number > 0) or [0.0])


def _of_machine(own_ms: float, usual_ms: float) -> float:
    differs = own_ms > usual_ms * _ANOTHER_MACHINE or own_ms * _ANOTHER_MACHINE < usual_ms
    return own_ms if own_ms > 0 and differs else usual_ms
