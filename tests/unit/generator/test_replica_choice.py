"""A router's half of routing: messages become questions, agents' notices a view, decisions words."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protos.kvquilt.v1 import common_pb2, generation_pb2
from services.generator.listening import Listener
from services.generator.replica_choice import ReplicaChoice
from shared.errors import InvalidRequest, Unavailable
from shared.metrics.recorder import Metrics
from shared.routing.chains import KnownChains
from shared.routing.costs import ReplicaLoad, RoutedQuestion, Tier, chunk_key
from shared.routing.decision import RouteReason
from shared.routing.noticeboard import NoticeBoard
from shared.routing.reports import HeldChunks, LaneName, plain, plain_load
from shared.wire.routed import routed_of

NODES = {"r0": "n0", "r1": "n1", "r2": "n2"}
FIELDS = (
    "holder",
    "tier",
    "epoch",
    "seq",
    "base_seq",
    "added",
    "wait_ms",
    "prefill_ms",
    "find_ms",
    "link_ms",
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["r1", "resident"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=6,
)
SHAPED = st.fixed_dictionaries({}, optional=dict.fromkeys(("report", "load", "rates", "age_ms"), JUNK))


class Clock:
    """Seconds, as one sets them."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def question(*chunk_ids: str, explain: bool = False, num_tokens: int = 100) -> generation_pb2.GenerateRequest:
    ids = generation_pb2.TokenIds(ids=range(num_tokens))
    return generation_pb2.GenerateRequest(
        chunks=[generation_pb2.Piece(token_ids=ids)] * len(chunk_ids),
        questions=[generation_pb2.Piece(text="Who signed it?")],
        chunk_ids=chunk_ids,
        explain=explain,
    )


def routed(request: generation_pb2.GenerateRequest) -> RoutedQuestion:
    return routed_of(request, KnownChains())


def choice(clock: Clock | None = None, metrics: Metrics | None = None) -> ReplicaChoice:
    made = ReplicaChoice(metrics=metrics, clock=clock or Clock())
    made.set_replicas(NODES)
    return made


def notice(replica_id: str, *chunk_ids: str, seq: int = 0, **beside: object) -> dict[str, object]:
    keys = frozenset(map(chunk_key, chunk_ids))
    report = HeldChunks(LaneName(replica_id, Tier.RESIDENT), 1, seq, keys)
    return {"report": plain(report), "load": plain_load(ReplicaLoad()), "age_ms": 0.0, **beside}


def first_rank(made: ReplicaChoice, request: generation_pb2.GenerateRequest) -> tuple[str, ...]:
    decision = made.decide("Generate", request, NODES)
    assert decision is not None
    return decision.ranks[0]


def test_a_question_tells_its_chunks_and_what_is_computed_anyway() -> None:
    request = question("a", "b")
    request.reuse, request.recompute.ratio, request.sampling.n = "epic", 0.5, 3
    told = routed(request)
    assert [chunk.key for chunk in told.chunks] == [chunk_key("a"), chunk_key("b")]
    assert [chunk.num_tokens for chunk in told.chunks] == [100, 100]
    assert (told.num_tokens, told.branches) == (100 + 4, 3)
    request.recompute.ClearField("ratio")
    assert routed(request).num_tokens == 40 + 4


def test_full_wants_no_chunk_from_anywhere() -> None:
    request = question("a", "b")
    request.reuse = "full"
    assert (routed(request).chunks, routed(request).num_tokens) == ((), 200 + 4)


def test_chunks_without_names_are_told_apart_by_what_they_are() -> None:
    request = question("a", "b")
    request.chunk_ids[:] = []
    one, other = (chunk.key for chunk in routed(request).chunks)
    assert one == other  # equal pieces
    request.chunks[1].parent_id = "0" * 40
    one, other = (chunk.key for chunk in routed(request).chunks)
    assert one != other


def test_a_miss_counts_the_chain_that_questions_told_of() -> None:
    chains = KnownChains()
    first, second = question("a", num_tokens=80), question("b", "c")
    second.chunks[0].parent_id, second.chunks[1].parent_id = "a", "b"
    assert routed_of(first, chains).chunks[0].chain == ()
    a, b = (chunk_key("a"), 80), (chunk_key("b"), 100)
    assert [chunk.chain for chunk in routed_of(second, chains).chunks] == [(a,), (a, b)]
    again = question("c")
    again.chunks[0].parent_id = "b"
    assert routed_of(again, chains).chunks[0].chain == (a, b)
    assert routed_of(again, KnownChains()).chunks[0].chain == (), "nobody asked for what is in front of it"


def test_what_computes_least_with_its_chain_is_chosen() -> None:
    made = choice()
    chained = question("b")
    chained.chunks[0].parent_id = "a"
    first_rank(made, question("a"))
    rates = {"find_ms": 0.0, "link_ms": {"objects": 1.0}, "prefill_ms": 0.1}
    for name, node in NODES.items():
        held = ("a",) if name == "r2" else ()
        made.heard(node, [notice(name, *held, rates=rates)])
    assert first_rank(made, chained) == ("r2",)


def test_names_that_do_not_fit_are_refused_by_name_and_routed_anywhere() -> None:
    request = question("a", "b")
    request.chunk_ids.append("c")
    with pytest.raises(InvalidRequest, match="chunk_ids: 3 of 2 chunks"):
        routed(request)
    assert choice().decide("Generate", request, NODES) is None
    request = question("a")
    request.reuse = "magic"
    assert choice().decide("Generate", request, NODES) is None


def test_what_is_no_question_goes_anywhere() -> None:
    made = choice()
    assert made.decide("Prefill", generation_pb2.PrefillRequest(), NODES) is None
    assert made.decide("Generate", b"as the proxy has it", NODES) is None
    assert made.decide("Health", common_pb2.HealthRequest(), NODES) is None


def test_without_reports_the_same_chunks_go_the_same_way() -> None:
    made = choice()
    homes = {first_rank(made, question("a", "b"))[0] for _ in range(5)}
    assert len(homes) == 1
    spread = {first_rank(made, question(f"c{i}"))[0] for i in range(40)}
    assert spread == set(NODES)
    assert made.decide("Generate", question("a"), NODES).reason is RouteReason.BLIND  # type: ignore[union-attr]


def test_a_question_goes_where_its_chunks_are_said_to_be() -> None:
    made = choice()
    for replica, node in NODES.items():
        made.heard(node, [notice(replica, *(["a", "b"] if replica == "r1" else []))])
    assert first_rank(made, question("a", "b")) == ("r1",)
    made.heard("n1", [notice("r1", seq=1)])
    made.heard("n2", [notice("r2", "a", "b", seq=1)])
    assert first_rank(made, question("a", "b")) == ("r2",)
    made.check_invariants()


def test_waiting_that_a_replica_tells_of_sends_questions_elsewhere() -> None:
    made = choice()
    busy = plain_load(ReplicaLoad(wait_ms=60_000))
    for replica, node in NODES.items():
        made.heard(node, [notice(replica)])
    made.heard("n1", [notice("r1", "a", seq=1, load=busy)])
    assert "r1" not in first_rank(made, question("a"))


def test_a_replica_that_has_not_seen_how_fast_it_is_is_chosen_too() -> None:
    """Else all questions went to the one that had the first of them."""
    made = choice()
    rates = {"prefill_ms": 0.01, "link_ms": {"disk": 0.001}}
    made.heard("n0", [notice("r0", rates=rates)])
    for node, replica in (("n1", "r1"), ("n2", "r2")):
        made.heard(node, [notice(replica)])
    firsts = [first_rank(made, question(f"c{i}")) for i in range(60)]
    assert {name for rank in firsts for name in rank} == set(NODES)


def test_the_one_that_once_looked_fastest_does_not_get_all_that_is_new() -> None:
    """As it would where a few per cent counted, and the others, not asked, measured nothing any more."""
    made = choice()
    for (replica, node), ms in zip(NODES.items(), (1.0, 1.3, 1.8), strict=True):
        rates = {"prefill_ms": ms, "find_ms": 20 * ms, "link_ms": {"disk": 0.1 * ms}}
        made.heard(node, [notice(replica, rates=rates)])
    firsts = [first_rank(made, question(f"c{i}")) for i in range(60)]
    assert {name for rank in firsts for name in rank} == set(NODES)


def test_rates_that_a_replica_tells_of_count() -> None:
    """Where reading takes longer than computing, holding is worth as much as computing takes."""
    made = choice()
    rates = {"prefill_ms": 2.0, "link_ms": {"disk": 0.5}}
    for replica, node in NODES.items():
        made.heard(node, [notice(replica, rates=rates)])
    decision = made.decide("Generate", question("a"), NODES)
    assert decision is not None
    assert decision.costs["r0"].prefill_ms >= 2.0 * 4
    # a tier that nobody tells of is read as slowly as the slowest one that was
    assert decision.costs["r0"].tiers == (Tier.OBJECTS,)
    assert decision.costs["r0"].loads_ms == pytest.approx(50, rel=0.2)


@pytest.mark.parametrize(("find_ms", "first"), [(30.0, True), (0.0, False)])
def test_finding_chunks_takes_time_however_fast_they_are_read(find_ms: float, first: bool) -> None:
    made = choice()
    rates = {"prefill_ms": 1.0, "find_ms": find_ms, "link_ms": {"memory": 0.0001}}
    for replica, node in NODES.items():
        made.heard(node, [notice(replica, rates=rates)])
    busy = plain_load(ReplicaLoad(wait_ms=10))
    made.heard("n1", [notice("r1", "a", seq=1, rates=rates, load=busy)])
    assert ("r1" in first_rank(made, question("a"))) is first


def test_the_message_says_why_and_how_much_should_be_there() -> None:
    metrics = Metrics()
    made, request = choice(metrics=metrics), question("a", "b", explain=True)
    made.heard("n1", [notice("r1", "a", "b")])
    decision = made.decide("Generate", request, NODES)
    assert decision is not None
    made.sent(decision, "r1", request)
    assert request.route_held == 2
    assert request.route.startswith("r1: it holds what is wanted, or the most of it; ")
    assert "chunks: 2 resident" in request.route
    made.sent(decision, "r0", request)  # it was sent again, elsewhere
    assert (request.route_held, request.route.startswith("r0: first came r1")) == (0, True)
    quiet = question("a")
    made.sent(decision, "r1", quiet)
    assert quiet.route == ""
    assert 'kvquilt_route_decisions_total{reason="held"} 3.0' in metrics.text()
    assert "kvquilt_route_seconds_count 1.0" in metrics.text()
    assert "kvquilt_route_seconds_sum 0.0" in metrics.text(), "the clock stands still"


def test_replicas_that_came_are_chosen_and_those_that_went_are_not() -> None:
    made = choice()
    made.heard("n1", [notice("r1", "a")])
    made.set_replicas({"r0": "n0", "r3": "n3"})
    assert made.nodes == {"n0", "n3"}
    decision = made.decide("Generate", question("a"), ["r0", "r3", "r4"])
    assert decision is not None
    assert {name for rank in decision.ranks for name in rank} == {"r0", "r3", "r4"}
    made.check_invariants()


def test_a_lost_report_is_asked_for_anew() -> None:
    clock = Clock()
    made, board = choice(clock), NoticeBoard(10_000)
    board.told(notice("r1", "a"), 0)
    made.heard("n1", board.since(made.known("n1"), 0))
    assert made.known("n1") == {"resident:r1": (1, 0)}
    clock.now_s += 60  # the lease is over, so a renewal is not enough
    made.heard("n1", board.since(made.known("n1"), 0))
    assert made.known("n1") == {}
    made.heard("n1", board.since(made.known("n1"), 0))
    assert first_rank(made, question("a")) == ("r1",)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)
@given(st.lists(SHAPED | st.just(notice("r1", "a")), max_size=4))
def test_nonsense_breaks_nothing(notices: list[dict[str, object]]) -> None:
    made = choice()
    made.heard("n1", notices)
    assert made.decide("Generate", question("a"), NODES) is not None
    made.check_invariants()


def test_nodes_are_asked_while_questions_come_and_then_left_alone() -> None:
    clock, asked = Clock(), list[str]()

    async def ask(node_id: str, known: Mapping[str, tuple[int, int]]) -> Sequence[Mapping[str, object]]:
        asked.append(node_id)
        clock.now_s += 4
        if node_id == "n0":
            raise Unavailable("no agent there")
        return [notice("r1", "a")] if node_id == "n1" else []

    async def run() -> None:
        made = choice(clock)
        listener = Listener(made, ask, period_s=0)
        listener.wake()
        await asyncio.sleep(0)
        assert asked == []  # nobody asked anything
        made.decide("Generate", question("a"), NODES)
        listener.wake()
        listener.wake()
        await asyncio.wait([task for task in asyncio.all_tasks() if task is not asyncio.current_task()])
        assert sorted(asked) == ["n0", "n1", "n2"]  # 12 s have gone by, more than a lease
        assert first_rank(made, question("a")) == ("r1",)

    asyncio.run(run())


def test_time_that_went_by_since_a_load_was_told_is_taken_off() -> None:
    made = choice()
    load = plain_load(ReplicaLoad(wait_ms=1000.0))
    made.heard("n0", [notice("r0", load=load, age_ms=900.0)])
    made.heard("n1", [notice("r1", load=load, age_ms="nonsense")])
    decision = made.decide("Generate", question("a"), NODES)
    assert decision is not None
    assert decision.costs["r0"].wait_ms == pytest.approx(100.0)
    assert decision.costs["r1"].wait_ms == pytest.approx(1000.0)
