"""What an answer costs at a replica: never less because something is missing or somebody waits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import InvalidRequest
from shared.routing.costs import (
    MOST_MS,
    ReplicaCost,
    ReplicaLoad,
    ReplicaRates,
    RoutedQuestion,
    Tier,
    WantedChunk,
    balanced,
    check_time,
    replica_cost,
)

RATES = ReplicaRates(
    {Tier.MEMORY: 0.01, Tier.DISK: 0.05, Tier.PEER: 0.08, Tier.OBJECTS: 0.2}, prefill_ms=0.1, branch_ms=2.0
)
FARTHER = [Tier.RESIDENT, Tier.MEMORY, Tier.DISK, Tier.PEER, Tier.OBJECTS, Tier.COMPUTED]
TIMES = st.floats(0, 1e5)
COUNTS = st.integers(0, 2)


def cost(
    tiers: list[Tier],
    load: ReplicaLoad | None = None,
    chain_tokens: list[int] | None = None,
    find_ms: float = 0.0,
) -> ReplicaCost:
    question = RoutedQuestion(tuple(WantedChunk(i, 500) for i in range(len(tiers))), num_tokens=100)
    chains = chain_tokens or [0] * len(tiers)
    rates = replace(RATES, find_ms=find_ms)
    return replica_cost("r", question, tiers, chains, rates, load or ReplicaLoad())


def test_what_is_resident_costs_the_prefill_of_the_question() -> None:
    assert cost([Tier.RESIDENT] * 3).total_ms == pytest.approx(10)


def test_a_load_hides_behind_the_prefill_of_an_engine_that_has_nothing_else_to_do() -> None:
    assert cost([Tier.MEMORY]).total_ms == pytest.approx(10)
    answering = cost([Tier.MEMORY], ReplicaLoad(branches=1))
    loads_ms = 50 / 11  # what takes 5 to load, or 50 to compute, both at once
    assert (answering.total_ms, answering.work_ms) == pytest.approx((loads_ms + 10 + 2, loads_ms + 10))


def test_a_load_hides_behind_what_one_waits_for() -> None:
    assert cost([Tier.DISK], ReplicaLoad(wait_ms=30)).total_ms == pytest.approx(30 + 10)
    assert cost([Tier.OBJECTS], ReplicaLoad(wait_ms=30)).total_ms == pytest.approx(100 + 10)


def test_an_engine_that_answers_computes_beside_loading_and_the_question_then() -> None:
    idle, answering = (cost([Tier.OBJECTS], ReplicaLoad(branches=branches)) for branches in (0, 1))
    assert idle.total_ms == pytest.approx(40)  # 0.4 of 100 are loaded while 10 + 0.6 of 50 are computed
    assert answering.total_ms == pytest.approx(100 / 3 + 10 + 2)
    assert (answering.loads_ms, answering.prefill_ms) == pytest.approx((100 / 3, 100 / 3 + 10))


def test_what_is_nowhere_is_computed_with_its_chain() -> None:
    assert cost([Tier.COMPUTED], chain_tokens=[1000]).prefill_ms == pytest.approx(10 + 150)


def test_a_miss_costs_no_more_than_computing_it_with_its_chain() -> None:
    assert cost([Tier.OBJECTS] * 4).total_ms <= 10 + 4 * 50
    dear = cost([Tier.OBJECTS], chain_tokens=[10**6])
    assert dear.total_ms == pytest.approx(100, rel=0.01)  # loading is cheaper than so long a chain


def test_an_engine_that_somebody_waits_for_computes_nothing_that_can_be_loaded() -> None:
    idle, busy = (cost([Tier.OBJECTS], ReplicaLoad(wait, loading_ms=5000)) for wait in (0.0, 1.0))
    assert (idle.loads_ms, idle.prefill_ms) == (0, pytest.approx(10 + 50))
    assert (busy.loads_ms, busy.prefill_ms) == (pytest.approx(100), pytest.approx(10))
    assert cost([Tier.COMPUTED], ReplicaLoad(1.0)).prefill_ms == pytest.approx(10 + 50)


def test_who_waits_for_what_arrives_queues_for_links_even_where_the_rest_is_computed() -> None:
    load = ReplicaLoad(loading_ms=300)
    both = cost([Tier.ARRIVING, Tier.OBJECTS], load)
    assert (both.loads_ms, both.loaded_ms) == (0, pytest.approx(300))
    assert cost([Tier.OBJECTS], load).loaded_ms == 0
    assert both.delay_ms + both.work_ms == both.total_ms == pytest.approx(300)


def test_waiting_and_decoding_come_on_top() -> None:
    load = ReplicaLoad(wait_ms=30, loading_ms=70, branches=4)
    assert cost([Tier.RESIDENT], load).total_ms == pytest.approx(30 + 10 + 8)
    assert cost([Tier.ARRIVING], load).total_ms == pytest.approx(70 + 10 + 8)  # it loads while one waits


def test_finding_chunks_goes_on_while_links_are_busy_and_keeps_no_link_busy() -> None:
    rates = replace(RATES, prefill_ms=100, find_ms=40)

    def loading(backlog_ms: float, *tiers: Tier) -> tuple[float, float]:
        question = RoutedQuestion(tuple(WantedChunk(i, 500) for i in range(len(tiers))), num_tokens=0)
        load = ReplicaLoad(wait_ms=1, loading_ms=backlog_ms)
        found = replica_cost("r", question, tiers, [0] * len(tiers), rates, load)
        return found.total_ms, found.loads_ms

    assert loading(0, Tier.RESIDENT) == pytest.approx((1, 0))
    assert loading(0, Tier.MEMORY) == pytest.approx((45, 5))
    assert loading(0, Tier.MEMORY, Tier.RESIDENT, Tier.MEMORY) == pytest.approx((50, 10))
    assert loading(30, Tier.MEMORY) == pytest.approx((45, 5))
    assert loading(50, Tier.MEMORY) == pytest.approx((55, 5))


def test_what_is_nowhere_has_to_be_looked_for_even_where_the_rest_is_computed() -> None:
    for other in FARTHER:
        assert cost([Tier.COMPUTED, other], find_ms=1000).total_ms >= 1000


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(FARTHER), min_size=1, max_size=6),
    st.data(),
    st.lists(st.integers(0, 3000), min_size=6, max_size=6),
    st.floats(0, 1e3),
)
def test_nothing_is_cheaper_because_a_chunk_is_farther_away(
    tiers: list[Tier], data: st.DataObject, chains: list[int], find: float
) -> None:
    at = data.draw(st.integers(0, len(tiers) - 1))
    farther = data.draw(st.sampled_from(FARTHER[FARTHER.index(tiers[at]) :]))
    moved = [*tiers[:at], farther, *tiers[at + 1 :]]
    chains = chains[: len(tiers)]
    before = cost(tiers, chain_tokens=chains, find_ms=find).total_ms
    assert cost(moved, chain_tokens=chains, find_ms=find).total_ms >= before - 1e-6
    longer = [tokens + 100 for tokens in chains]
    assert cost(tiers, chain_tokens=longer, find_ms=find).total_ms >= before - 1e-6
    assert cost(tiers, chain_tokens=chains, find_ms=find + 10).total_ms >= before - 1e-6


@settings(deadline=None)
@given(st.lists(st.sampled_from(FARTHER), max_size=5), *[st.just(0.0) | TIMES] * 5, COUNTS, COUNTS)
def test_nothing_is_cheaper_where_one_waits_longer(
    tiers: list[Tier],
    wait: float,
    loading: float,
    longer: float,
    later: float,
    find: float,
    branches: int,
    more: int,
) -> None:
    before = cost(tiers, ReplicaLoad(wait, loading, branches), find_ms=find)
    after = cost(tiers, ReplicaLoad(wait + longer, loading + later, branches + more), find_ms=find)
    assert after.total_ms >= before.total_ms - 1e-6
    assert before.delay_ms >= -1e-6
    assert before.total_ms >= before.loaded_ms


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 1e3), st.floats(0.1, 1e3)), max_size=6), TIMES, TIMES)
def test_balancing_is_as_good_as_the_best_choice_of_whole_chunks(
    misses: list[tuple[float, float]], loaded: float, prefill: float
) -> None:
    def whole(chosen: int) -> float:
        loads = loaded + sum(load for i, (load, _) in enumerate(misses) if not chosen >> i & 1)
        computes = prefill + sum(compute for i, (_, compute) in enumerate(misses) if chosen >> i & 1)
        return max(loads, computes)

    assert max(balanced(misses, loaded, prefill)) <= min(map(whole, range(2 ** len(misses)))) + 1e-6


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, 1e300, 10**400, True, "5", None])
def test_times_that_are_none_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidRequest, match="wait_ms"):
        ReplicaLoad(wait_ms=bad)
    with pytest.raises(InvalidRequest, match=r"link_ms\.disk"):
        ReplicaRates({Tier.DISK: bad}, 1.0)
    with pytest.raises(InvalidRequest, match="prefill_ms"):
        ReplicaRates({}, bad)


def test_what_is_no_link_number_or_chunk_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="link_ms"):
        ReplicaRates({Tier.RESIDENT: 1.0}, 1.0)
    with pytest.raises(InvalidRequest, match="branches"):
        ReplicaLoad(branches=-1)
    with pytest.raises(InvalidRequest, match=r"chunks\.num_tokens"):
        WantedChunk(1, -5)
    with pytest.raises(InvalidRequest, match=r"chunks\.key"):
        WantedChunk(2**64, 5)


def test_a_time_may_be_a_day_and_no_more() -> None:
    check_time("wait_ms", MOST_MS)
    for wrong in (MOST_MS + 1, -1.0, float("nan"), True):
        with pytest.raises(InvalidRequest, match="wait_ms"):
            check_time("wait_ms", wrong)
