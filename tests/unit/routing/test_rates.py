from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.routing.costs import ReplicaRates, Tier
from shared.routing.rates import UNSEEN, MeasuredRates

POSITIVE = st.floats(1e-6, 1e4)
MEASURED = st.builds(
    ReplicaRates,
    st.dictionaries(st.sampled_from((Tier.MEMORY, Tier.DISK, Tier.PEER, Tier.OBJECTS)), POSITIVE, min_size=1),
    POSITIVE,
    POSITIVE,
    st.just(0.0) | POSITIVE,
)


def rates(ms: float, **told: float) -> ReplicaRates:
    return ReplicaRates({Tier.DISK: ms}, prefill_ms=ms, branch_ms=ms, find_ms=told.get("find_ms", ms))


def of(*told: ReplicaRates, on_one_node: bool = False) -> list[ReplicaRates]:
    made = MeasuredRates()
    made.set_replicas({f"r{i}": "n" if on_one_node else f"n{i}" for i in range(len(told))})
    for i, one in enumerate(told):
        assert made.tell(f"r{i}", one, 0.0)
    return list(made.expected(0.0).values())


def test_nodes_that_measured_nearly_the_same_are_as_fast_as_each_other() -> None:
    assert of(rates(1.0), rates(1.3), rates(1.9)) == [rates(1.3)] * 3
    assert of(rates(1.0), rates(1.9)) == [rates(1.0)] * 2


def test_replicas_of_one_node_are_as_fast_as_each_other_whatever_they_measured() -> None:
    assert of(rates(1.0), rates(9.0), rates(5.0), on_one_node=True) == [rates(5.0)] * 3


def test_another_machine_has_rates_of_its_own() -> None:
    slow = rates(9.0)
    assert of(rates(1.0), slow, rates(1.2)) == [rates(1.2), slow, rates(1.2)]
    assert of(slow, rates(1.0)) == [slow, rates(1.0)]


def test_who_has_measured_nothing_is_as_fast_as_its_node_or_most() -> None:
    made = MeasuredRates()
    made.set_replicas({"new": "n"})
    assert made.expected(0.0) == {"new": UNSEEN}
    made.set_replicas({"a": "n1", "b": "n2", "c": "n3", "new": "n4", "beside": "n3"})
    for name, ms in (("a", 1.0), ("b", 2.0), ("c", 9.0)):
        made.tell(name, rates(ms), 0.0)
    expected = made.expected(0.0)
    assert (expected["new"], expected["beside"]) == (rates(2.0), rates(9.0))
    assert of(rates(2.0), rates(2.0, find_ms=0.0)) == [rates(2.0)] * 2
    one, other = of(ReplicaRates({Tier.DISK: 1.0}, 1.0), ReplicaRates({Tier.MEMORY: 0.5}, 1.0))
    assert one == other == ReplicaRates({Tier.DISK: 1.0, Tier.MEMORY: 0.5}, 1.0)


def test_what_was_measured_long_ago_by_one_that_is_not_asked_counts_no_more() -> None:
    """Else one that was slow once, because something else ran, would never be asked again."""
    made = MeasuredRates()
    made.set_replicas({"slow": "n1", "asked": "n2"})
    assert made.tell("slow", rates(9.0), 0.0)
    for now_ms in (0.0, 20_000.0, 40_000.0):
        made.tell("asked", rates(1.0 + now_ms * 1e-6), now_ms)
        assert not made.tell("slow", rates(9.0), now_ms)
        assert (made.expected(now_ms)["slow"] == rates(9.0)) is (now_ms < 30_000.0)
    assert made.expected(1e6)["slow"] == rates(9.0)  # nobody has measured anything since


def test_those_that_have_gone_count_no_more() -> None:
    made = MeasuredRates()
    made.set_replicas(dict.fromkeys("abc", "n"))
    for name, ms in (("a", 1.0), ("b", 1.2), ("c", 1.4)):
        made.tell(name, rates(ms), 0.0)
    made.set_replicas({"c": "n", "d": "n2"})
    assert made.expected(0.0) == {"c": rates(1.4), "d": rates(1.4)}
    made.set_replicas({"a": "n", "c": "n"})
    assert made.tell("a", rates(1.0), 0.0)


@given(st.lists(MEASURED, min_size=1, max_size=9))
def test_no_number_of_a_node_is_further_off_than_a_factor_of_two(told: list[ReplicaRates]) -> None:
    for own, expected in zip(told, of(*told), strict=True):
        assert expected.link_ms.keys() == {tier for one in told for tier in one.link_ms}
        for tier, ms in own.link_ms.items():
            assert ms / 2 <= expected.link_ms[tier] <= ms * 2
        assert own.prefill_ms / 2 <= expected.prefill_ms <= own.prefill_ms * 2
        if own.find_ms:
            assert own.find_ms / 2 <= expected.find_ms <= own.find_ms * 2


@pytest.mark.parametrize("seed", range(3))
def test_their_order_does_not_matter(seed: int) -> None:
    told = [rates(ms) for ms in (0.1, 1.0, 1.1, 1.2, 5.0)]
    turned = told[seed:] + told[:seed]
    assert sorted(one.prefill_ms for one in of(*told)) == sorted(one.prefill_ms for one in of(*turned))
