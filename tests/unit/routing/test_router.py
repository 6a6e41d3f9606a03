"""Where questions go: to what they cost least, together, and nowhere for ever."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import InvalidRequest
from shared.routing.costs import ReplicaLoad, ReplicaRates, RoutedQuestion, Tier, WantedChunk
from shared.routing.decision import RouteReason
from shared.routing.homes import Homes, num_homes
from shared.routing.reports import HeldChunks, LaneName, ReportOutcome, plain, plain_load
from shared.routing.router import ReplicaRouter
from shared.routing.settings import FleetReplica, RoutingSettings
from shared.routing.shortlist import most_first, slots_of

RATES = ReplicaRates({Tier.DISK: 0.05, Tier.PEER: 0.08, Tier.OBJECTS: 0.2}, prefill_ms=0.1, branch_ms=1.0)


def fleet(count: int, per_node: int = 1) -> list[FleetReplica]:
    return [FleetReplica(f"r{i}", f"n{i // per_node}", RATES) for i in range(count)]


def router(count: int, seed: int = 0, settings: RoutingSettings | None = None) -> ReplicaRouter:
    made = ReplicaRouter(settings or RoutingSettings(), seed)
    made.set_replicas(fleet(count))
    return made


def asked(*keys: int, num_tokens: int = 100) -> RoutedQuestion:
    return RoutedQuestion(tuple(WantedChunk(key, 500) for key in keys), num_tokens)


def tell(routed: ReplicaRouter, replica_id: str, *keys: int, now_ms: float = 0.0) -> None:
    report = HeldChunks(LaneName(replica_id, Tier.RESIDENT), 1, int(now_ms), frozenset(keys))
    assert routed.told(plain(report), now_ms) is ReportOutcome.APPLIED


def test_a_question_goes_where_its_chunks_are() -> None:
    routed = router(4)
    tell(routed, "r1", 1, 2)
    tell(routed, "r2", 1, 2, 3)
    decision = routed.rank(asked(1, 2, 3), 0)
    assert decision.ranks[0] == ("r2",)
    assert decision.reason is RouteReason.HELD
    assert decision.costs["r1"].tiers == (Tier.RESIDENT, Tier.RESIDENT, Tier.OBJECTS)


def test_nodes_and_peers_are_known() -> None:
    routed = router(3)
    routed.told(plain(HeldChunks(LaneName("n1", Tier.DISK), 1, 0, frozenset({1}))), 0)
    costs = routed.rank(asked(1), 0).costs
    assert [costs[f"r{i}"].tiers[0] for i in range(3)] == [Tier.PEER, Tier.DISK, Tier.PEER]


def test_a_chain_that_is_there_makes_computing_cheaper() -> None:
    rates = ReplicaRates({}, prefill_ms=0.1)
    routed = ReplicaRouter(RoutingSettings())
    routed.set_replicas([FleetReplica(f"r{i}", f"n{i}", rates) for i in range(2)])
    tell(routed, "r1", 9)
    decision = routed.rank(RoutedQuestion((WantedChunk(1, 500, ((9, 1000),)),), 0), 0)
    assert decision.costs["r0"].total_ms == pytest.approx(150)
    assert decision.costs["r1"].total_ms == pytest.approx(50)


def test_equal_replicas_are_one_rank() -> None:
    routed = router(5)
    for i in range(5):
        tell(routed, f"r{i}", 1, 2)
    assert set(routed.rank(asked(1, 2), 0).ranks[0]) == {f"r{i}" for i in range(5)}
    assert set(routed.rank(asked(), 0).ranks[0]) == {f"r{i}" for i in range(5)}


def test_kv_that_loads_faster_than_what_counts_as_equal_is_held_together_all_the_same() -> None:
    rates = ReplicaRates({Tier.DISK: 1e-5}, prefill_ms=1e-4)
    routed = ReplicaRouter(RoutingSettings())
    routed.set_replicas([FleetReplica(f"r{i}", "n0", rates) for i in range(2)])  # they share a disk
    routed.told(plain(HeldChunks(LaneName("n0", Tier.DISK), 1, 0, frozenset(range(40)))), 0)
    tell(routed, "r0", 1)
    tell(routed, "r1", 1, 2)
    assert routed.rank(asked(1, 2), 0).ranks == (("r1",), ("r0",))
    assert routed.rank(asked(1), 0).ranks == (("r0", "r1"),), "both have it: the shorter queue"
    homes = [routed.rank(asked(key, key + 1), 0).ranks[0] for key in range(10, 38)]
    assert homes == [routed.rank(asked(key + 1, key), 0).ranks[0] for key in range(10, 38)]
    assert set(homes) == {("r0",), ("r1",)}
    routed.load_told("r1", ReplicaLoad(wait_ms=5), 0)
    assert routed.rank(asked(1, 2), 0).ranks[0] == ("r0",), "it does not wait for that"


def test_waiting_breaks_affinity_once_loading_takes_less() -> None:
    routed = router(2)
    tell(routed, "r0", 1)
    tell(routed, "r1")
    routed.load_told("r0", ReplicaLoad(wait_ms=20), 0)
    assert routed.rank(asked(1), 0).ranks[0] == ("r0",)
    routed.load_told("r0", ReplicaLoad(wait_ms=500), 0)
    decision = routed.rank(asked(1), 0)
    assert decision.ranks[0] == ("r1",)
    assert decision.reason is RouteReason.SPREAD
    assert routed.rank(asked(1), 490).ranks[0] == ("r0",)  # it has worked it off since


def test_cold_questions_meet_at_the_same_home_whichever_router_is_asked() -> None:
    first, second = router(50, seed=1), router(50, seed=2)
    for routed in (first, second):
        tell(routed, "r0")
    for key in range(0, 4000, 100):
        one = first.rank(asked(*range(key, key + 8)), 0)
        other = second.rank(asked(*range(key + 1, key + 9)), 0)  # other chunks, mostly the same
        same = second.rank(asked(*range(key, key + 8)), 0)
        assert one.reason is RouteReason.HOME
        assert one.ranks[0] == same.ranks[0]
        assert len(one.ranks[0]) == len(other.ranks[0]) == 1


@pytest.mark.parametrize("routers", [1, 2])
@pytest.mark.parametrize("reports", [True, False])
def test_a_burst_of_equal_cold_questions_neither_scatters_nor_piles_up(routers: int, reports: bool) -> None:
    """40 at once over 40 replicas: each takes 10 ms of prefill beside loads of 200 ms."""
    all_routers = [router(40, seed) for seed in range(routers)]
    for routed in all_routers if reports else ():
        tell(routed, "r0")
    chosen: Counter[str] = Counter()
    for i in range(40):
        routed = all_routers[i % routers]
        decision = routed.rank(asked(1, 2, num_tokens=100), 0)
        chosen[decision.ranks[0][0]] += 1
        routed.dispatched(decision, decision.ranks[0][0], 0)
        routed.check_invariants()
    assert len(chosen) < 16
    assert max(chosen.values()) < 30


def test_own_decisions_count_for_two_seconds() -> None:
    routed = router(10)
    tell(routed, "r0")
    decision = routed.rank(asked(1), 0)
    routed.dispatched(decision, decision.ranks[0][0], 0)
    assert routed.rank(asked(1), 1_900).costs[decision.ranks[0][0]].tiers == (Tier.ARRIVING,)
    assert routed.rank(asked(1), 2_100).costs[decision.ranks[0][0]].tiers == (Tier.OBJECTS,)
    routed.check_invariants()


def test_what_a_replica_says_of_its_load_covers_what_was_sent_before() -> None:
    routed = router(1)
    decision = routed.rank(asked(num_tokens=1000), 0)
    routed.dispatched(decision, "r0", 0)
    assert routed.rank(asked(), 0).costs["r0"].wait_ms == pytest.approx(100)
    routed.load_told("r0", ReplicaLoad(), 10)
    assert routed.rank(asked(), 10).costs["r0"].wait_ms == 0
    routed.dispatched(decision, "r0", 20)
    routed.load_told("r0", ReplicaLoad(age_ms=10), 25)  # it looked before
    assert routed.rank(asked(), 25).costs["r0"].wait_ms == pytest.approx(95)


def test_without_reports_questions_go_by_hash_and_load_and_it_says_so() -> None:
    routed = router(20)
    assert routed.blind
    decision = routed.rank(asked(1, 2), 0)
    assert decision.reason is RouteReason.BLIND
    assert decision.ranks == routed.rank(asked(1, 2), 0).ranks
    routed.load_told(decision.ranks[0][0], ReplicaLoad(wait_ms=10_000), 0)
    assert routed.rank(asked(1, 2), 0).ranks[0] != decision.ranks[0]
    assert "no replica tells" in decision.explain(decision.ranks[0][0])


def test_nonsense_is_counted_and_not_believed() -> None:
    routed = router(2)
    tell(routed, "r0", 1)
    bad = {"holder": "r0", "tier": "resident", "epoch": 1, "seq": float("nan")}
    assert routed.told(bad, 0) is ReportOutcome.MALFORMED
    assert routed.told({"holder": 5}, 0) is ReportOutcome.MALFORMED
    assert routed.blind
    assert routed.counts.reports[ReportOutcome.MALFORMED] == 2
    routed.check_invariants()


def test_a_view_that_is_too_old_costs_a_load_and_is_corrected() -> None:
    routed = router(2)
    tell(routed, "r0", 1, 2)
    tell(routed, "r1")
    decision = routed.rank(asked(1, 2), 0)
    assert routed.answered(decision, "r0", (Tier.DISK, Tier.RESIDENT)) == 1
    assert (routed.counts.hits, routed.counts.misses, routed.counts.route_stale) == (1, 1, 1)
    assert routed.rank(asked(1, 2), 0).costs["r0"].tiers == (Tier.OBJECTS, Tier.RESIDENT)
    with pytest.raises(InvalidRequest, match="tiers"):
        routed.answered(decision, "r0", ())
    routed.check_invariants()


def test_nobody_one_and_strangers() -> None:
    assert router(0).rank(asked(1), 0).ranks == ()
    assert router(0).rank(asked(1), 0).reason is RouteReason.NO_REPLICA
    assert router(1).rank(asked(1), 0).ranks == (("r0",),)
    routed = router(3)
    assert routed.rank(asked(1), 0, []).ranks == ()
    assert routed.rank(asked(1), 0, ["r1", "new"]).ranks == (("r1",), ("new",))
    assert routed.rank(asked(1), 0, ["new"]).ranks == (("new",),)
    with pytest.raises(InvalidRequest, match="twice"):
        routed.set_replicas([*fleet(2), *fleet(1)])


def test_a_replica_that_dies_between_choice_and_dispatch_is_forgotten() -> None:
    routed = router(3)
    tell(routed, "r1", 1)
    decision = routed.rank(asked(1), 0)
    routed.dispatched(decision, "r1", 0)
    routed.set_replicas([replica for replica in fleet(3) if replica.replica_id != "r1"])
    routed.dispatched(decision, "r1", 0)
    routed.answered(decision, "r1", (Tier.RESIDENT,))
    routed.load_told("r1", ReplicaLoad(), 0)
    assert "r1" not in routed.rank(asked(1), 0).costs
    routed.set_replicas(fleet(3))  # another one of that name: nothing is known of it
    assert routed.rank(asked(1), 0).costs["r1"].tiers == (Tier.OBJECTS,)
    routed.check_invariants()


def test_a_large_fleet_is_not_compared_one_by_one() -> None:
    routed = router(300)
    for i in range(300):
        tell(routed, f"r{i}", *([1] if i % 2 else []), *([2, 3] if i == 77 else []))
    decision = routed.rank(asked(1, 2, 3), 0)
    assert decision.ranks[0] == ("r77",)
    assert len(decision.costs) <= RoutingSettings().most_compared * 2


def test_a_decision_explains_itself() -> None:
    routed = router(3)
    tell(routed, "r2", 1)
    decision = routed.rank(asked(1, 5), 0)
    said = decision.explain("r2")
    assert said.startswith("r2: it holds what is wanted")
    assert "1 resident, 1 objects" in said
    assert "first came r2" in decision.explain("r0")
    assert decision.explain("unknown").startswith("unknown: first came r2")


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**12 - 1), max_size=9), st.integers(0, 2**12 - 1))
def test_those_that_hold_most_come_first(masks: list[int], among: int) -> None:
    counts = {slot: sum(mask >> slot & 1 for mask in masks) for slot in slots_of(among)}
    levels = [[counts[slot] for slot in slots_of(level)] for level in most_first(masks, among)]
    assert sorted((count for count in counts.values() if count), reverse=True) == [
        count for level in levels for count in level
    ]
    assert all(len(set(level)) == 1 for level in levels)


def test_a_replica_that_goes_moves_only_the_chunks_whose_home_it_was() -> None:
    homes, names = Homes(), [f"r{i}" for i in range(40)]
    homes.set_replicas(names)
    before = {key * 7919: homes.of(key * 7919, 1)[0] for key in range(4000)}
    spread = Counter(before.values())
    assert min(spread.values()) > 50
    assert max(spread.values()) < 200
    homes.set_replicas(names[1:])
    assert all(homes.of(key, 1)[0] == home for key, home in before.items() if home != "r0")


def test_hot_chunks_have_several_homes() -> None:
    assert num_homes(rate=0.1, work_ms=100, most=8) == 1
    assert num_homes(rate=20, work_ms=100, most=8) == 4
    assert num_homes(rate=2000, work_ms=100, most=8) == 8


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_told_every_candidate_is_ranked_once_and_the_best_comes_first(
    data: st.DataObject,
) -> None:
    routed = router(6, settings=RoutingSettings(patience=0))
    for i in range(6):
        tell(routed, f"r{i}", *data.draw(st.sets(st.integers(0, 5))))
        routed.load_told(f"r{i}", ReplicaLoad(data.draw(st.floats(0, 300))), 0)
    question = asked(*data.draw(st.sets(st.integers(0, 7), max_size=5)))
    decision = routed.rank(question, 0)
    ranked = [name for rank in decision.ranks for name in rank]
    assert sorted(ranked) == [f"r{i}" for i in range(6)]
    for chosen in (decision.costs[name] for name in decision.ranks[0]):
        most_ms = 1 + 0.05 * (chosen.work_ms + 300)  # within which two are as good: nobody waits longer
        for other in decision.costs.values():
            as_little = other.loads_ms <= chosen.loads_ms and other.prefill_ms <= chosen.prefill_ms
            assert not as_little or chosen.total_ms <= other.total_ms + most_ms


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 50), st.integers(1, 6), st.lists(st.floats(0, 5_000), min_size=2, max_size=8))
def test_waiting_breaks_affinity_once_and_for_good(
    patience: float, num_chunks: int, waits: list[float]
) -> None:
    """One holds all, the other has to load it: the longer the first one's queue, the less it is chosen."""
    routed = router(2, settings=RoutingSettings(patience=patience))
    tell(routed, "r0", *range(num_chunks))
    tell(routed, "r1")
    spread = []
    for wait_ms in sorted(waits):
        routed.load_told("r0", ReplicaLoad(wait_ms), 0)
        decision = routed.rank(asked(*range(num_chunks)), 0)
        spread.append(decision.ranks[0] == ("r1",))
        saved_ms = decision.costs["r1"].work_ms - decision.costs["r0"].work_ms
        if wait_ms > 2 * (1 + patience) * 1.06 * (saved_ms + 20) + 2:
            assert spread[-1]
        if wait_ms < saved_ms:
            assert "r0" in decision.ranks[0]
    assert spread == sorted(spread)


@settings(max_examples=12, deadline=None)
@given(
    routers=st.integers(1, 12),
    replicas=st.integers(4, 60),
    holders=st.integers(1, 60),
    seed=st.integers(0, 99),
)
def test_routers_that_decide_at_once_do_not_stampede_one_replica(
    routers: int, replicas: int, holders: int, seed: int
) -> None:
    """A chunk that several hold is suddenly asked for 96 times; no router sees what the others do, and no
    report comes meanwhile. Nobody gets more than what each router alone would let wait there."""
    all_routers = [router(replicas, seed + i) for i in range(routers)]
    for routed in all_routers:
        for i in range(replicas):
            tell(routed, f"r{i}", *([1] if i < holders else []))
    chosen: Counter[str] = Counter()
    for i in range(96):
        routed = all_routers[i % routers]
        decision = routed.rank(asked(1, num_tokens=100), 0)
        # what Serve does within a rank: the shortest queue, which it knows for itself
        name = min(decision.ranks[0], key=lambda name: chosen[name])
        chosen[name] += 1
        routed.dispatched(decision, name, 0)
    # one alone lets another one wait there for as long as twice the load of 100 ms takes: 20 prefills of 10
    fair = 96 / min(replicas, holders)
    assert max(chosen.values()) <= max(fair, 21 * routers) + 2
    if min(holders, replicas) > 1:
        assert len(chosen) > 1


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.sets(st.integers(0, 29), max_size=29))
def test_whoever_goes_the_homes_of_a_chunk_keep_their_order(key: int, gone: set[int]) -> None:
    homes, names = Homes(), [f"r{i}" for i in range(30)]
    homes.set_replicas(names)
    before = homes.of(key, 30)
    assert sorted(before) == sorted(names)
    left = [name for i, name in enumerate(names) if i not in gone]
    homes.set_replicas(left)
    assert homes.of(key, 5) == tuple(name for name in before if name in left)[:5]


def test_what_a_replica_said_earlier_does_not_undo_what_it_said_later() -> None:
    routed = router(1)
    routed.load_told("r0", ReplicaLoad(wait_ms=100), 1_000)
    routed.load_told("r0", ReplicaLoad(wait_ms=900, age_ms=500), 1_010)  # overtaken on its way
    assert routed.rank(asked(), 1_010).costs["r0"].wait_ms == pytest.approx(90)


def test_what_a_replica_said_of_its_load_has_a_lease() -> None:
    routed = router(2)
    routed.load_told("r0", ReplicaLoad(wait_ms=80_000_000, branches=2**30), 0)
    assert routed.rank(asked(1), 9_000).ranks[0] == ("r1",)
    cost = routed.rank(asked(1), 10_100).costs["r0"]
    assert (cost.wait_ms, cost.pressure_ms) == (0, 0)


NONSENSE: list[dict[str, object]] = [
    {},
    {"wait_ms": float("nan"), "loading_ms": 0, "branches": 0},
    {"wait_ms": -1, "loading_ms": 0, "branches": 0},
    {"wait_ms": 0, "loading_ms": 10**400, "branches": 0},
    {"wait_ms": 0, "loading_ms": float("inf"), "branches": 0},
    {"wait_ms": 0, "loading_ms": 0, "branches": -3},
    {"wait_ms": 0, "loading_ms": 0, "branches": 1.5},
    {"wait_ms": "10", "loading_ms": None, "branches": []},
]


@pytest.mark.parametrize("message", NONSENSE)
def test_a_load_that_makes_no_sense_is_counted_and_changes_nothing(message: dict[str, object]) -> None:
    routed = router(2)
    assert routed.load_reported("r0", plain_load(ReplicaLoad(30, 0, 2)), 0, age_ms=10)
    before = routed.rank(asked(1), 0).costs["r0"]
    assert not routed.load_reported("r0", message, 0)
    assert routed.counts.reports[ReportOutcome.MALFORMED] == 1
    assert routed.rank(asked(1), 0).costs["r0"] == before
    assert before.wait_ms == pytest.approx(20)


def test_who_is_unknown_changes_nothing() -> None:
    routed = router(2)
    assert routed.load_reported("who", plain_load(ReplicaLoad(30)), 0)
    stranger = plain(HeldChunks(LaneName("who", Tier.RESIDENT), 1, 0, frozenset({1})))
    assert routed.told(stranger, 0) is ReportOutcome.UNKNOWN
    assert routed.blind
    routed.check_invariants()


def test_a_replica_that_claims_to_hold_everything_is_found_out() -> None:
    """It has nothing: every chunk misleads once, and then costs there what it costs elsewhere."""
    routed = router(2)
    tell(routed, "r0", *range(100))
    tell(routed, "r1")
    for key in range(100):
        decision = routed.rank(asked(key), 0)
        assert routed.answered(decision, "r0", (Tier.OBJECTS,)) == 1
    assert routed.counts.route_stale == 100
    assert routed.rank(asked(5), 0).costs["r0"].tiers == (Tier.OBJECTS,)


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("tolerance_share", [-0.1, 101, float("nan"), "1", True]),
        ("tolerance_ms", [-1, float("nan"), float("inf"), 1e12, None]),
        ("patience", [-1, 1_000, float("nan"), "much"]),
        ("kept_ms", [-1, float("inf")]),
        ("lease_ms", [0, -5, float("nan"), 10**400]),
        ("most_compared", [0, 3, 5_000, 24.0, float("nan"), True]),
    ],
)
def test_impossible_bounds_are_refused_by_name(setting: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidRequest, match=setting):
            RoutingSettings(**{setting: value})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=25))
def test_whoever_comes_and_goes_a_node_keeps_what_it_told(changes: list[tuple[int, bool]]) -> None:
    """Eight replicas on two nodes, each of which holds a chunk of its own."""
    routed, there, told = router(0), dict[int, int](), set[int]()
    for i, (place, comes) in enumerate(changes):
        there = {one: name for one, name in there.items() if one != place} | ({place: i} if comes else {})
        replicas = [FleetReplica(f"r{name}", f"n{one // 4}", RATES) for one, name in there.items()]
        routed.set_replicas(replicas)
        nodes = {one // 4 for one in there}
        for node in nodes - told:  # one that is new, or lost all its replicas, tells anew
            report = HeldChunks(LaneName(f"n{node}", Tier.DISK), i + 1, 0, frozenset({100 + node}))
            assert routed.told(plain(report), 0) is ReportOutcome.APPLIED
        told = nodes
        routed.check_invariants()
        decision = routed.rank(asked(100, 101), 0)
        for one, name in there.items():
            tiers = [Tier.PEER if node in nodes else Tier.OBJECTS for node in (0, 1)]
            tiers[one // 4] = Tier.DISK
            assert decision.costs[f"r{name}"].tiers == tuple(tiers)


def test_where_all_links_are_busy_what_is_held_counts_more() -> None:
    """Its links are busy for 1.5 s longer, and loading takes 1 s: it is waited for only where all others
    queue for seconds as well, since loading would make them wait more."""
    for backlog_ms, first in ((0, "r1"), (5_000, "r0")):
        routed = router(8)
        tell(routed, "r0", *range(10))
        for i in range(8):
            later_ms = 1_500 if i == 0 else 0
            load = ReplicaLoad(wait_ms=1, loading_ms=backlog_ms + later_ms)
            routed.load_told(f"r{i}", load, 0)
        question = asked(*range(11))  # one chunk of which is nowhere near
        assert (routed.rank(question, 0).ranks[0][0] == "r0") is (first == "r0")


def test_an_engine_without_a_queue_computes_where_links_are_busy() -> None:
    routed = router(3)
    for i in range(3):
        routed.load_told(f"r{i}", ReplicaLoad(wait_ms=0 if i == 2 else 20, loading_ms=5_000), 0)
    decision = routed.rank(asked(1, 2), 0)
    assert decision.ranks[0] == ("r2",)
    assert decision.costs["r2"].total_ms == pytest.approx(10 + 100)
    assert decision.costs["r2"].loads_ms == 0


def test_links_are_shared_by_the_replicas_of_a_node() -> None:
    routed = ReplicaRouter(RoutingSettings())
    routed.set_replicas(fleet(4, per_node=2))
    routed.load_told("r1", ReplicaLoad(wait_ms=1), 0)
    decision = routed.rank(asked(1, 2, 3), 0)
    routed.dispatched(decision, "r0", 0)
    costs = routed.rank(asked(7), 0).costs
    assert costs["r1"].backlog_ms > 0
    assert costs["r2"].backlog_ms == 0
    routed.load_told("r1", ReplicaLoad(), 10)  # who tells of them tells of both
    assert routed.rank(asked(7), 10).costs["r0"].backlog_ms == 0


def test_what_questions_take_on_average_follows_what_was_sent() -> None:
    routed = router(1)
    for _ in range(300):
        decision = routed.rank(asked(1, 2), 0)
        routed.dispatched(decision, "r0", 0)
    work_ms = decision.costs["r0"].work_ms
    assert work_ms == pytest.approx(10)
    assert routed._mean_work_ms == pytest.approx(work_ms, rel=0.05)


def test_a_question_that_nobody_holds_goes_home_by_its_heaviest_chunk() -> None:
    def home(*chunks: WantedChunk) -> tuple[str, ...]:
        routed = router(40)
        tell(routed, "r0", 99)
        decision = routed.rank(RoutedQuestion(chunks, 100), 0)
        assert decision.reason is RouteReason.HOME
        return decision.ranks[0]

    light, heavy = WantedChunk(1, 100), WantedChunk(2, 500)
    assert home(light, heavy) == home(heavy, light) == home(heavy) != home(light)


def test_replicas_that_differ_by_a_share_of_the_work_are_one_rank() -> None:
    def ranks(share: float) -> tuple[tuple[str, ...], ...]:
        routed = router(2, settings=RoutingSettings(tolerance_share=share, tolerance_ms=0.0))
        tell(routed, "r0", 1)
        tell(routed, "r1", 1)
        routed.load_told("r1", ReplicaLoad(wait_ms=10.0), 0)
        return routed.rank(asked(1, num_tokens=1000), 0).ranks

    assert ranks(0.05) == (("r0",), ("r1",))
    assert ranks(0.5) == (("r0", "r1"),)
