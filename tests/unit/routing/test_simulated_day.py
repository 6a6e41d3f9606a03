"""The simulated day: the same for the same seed, consistent to its end, and what it says of the policy."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from load_tests.routing.__main__ import main
from load_tests.routing.breaks import CHANGES, breaks
from load_tests.routing.choosers import (
    CHUNKS,
    RENDEZVOUS,
    SERVE,
    WAYS,
    ByChunkCost,
    ByRendezvous,
    WayOfChoosing,
)
from load_tests.routing.findings import Findings, found, gain, measurements, verdict
from load_tests.routing.machines import Machines
from load_tests.routing.plan import DAY, LOSS, SMALL, DayPlan, Phase
from load_tests.routing.simulator import Day, Simulation
from load_tests.routing.workload import arrivals, wanted_chunk
from shared.errors import InvalidRequest
from shared.routing.costs import RoutedQuestion, Tier
from shared.routing.decision import RouteReason
from shared.routing.reports import ReportOutcome

TINY = SMALL.but(
    num_replicas=16, num_chunks=50_000, num_questions=2_000, pool_chunks=256, disk_chunks=2_000, routers=2
)


def run(way: WayOfChoosing, plan: DayPlan) -> tuple[Day, Simulation, Any]:
    chooser = way.make(plan)
    simulation = Simulation(plan, chooser)
    return simulation.run(), simulation, chooser


@pytest.fixture(scope="module")
def ways() -> Mapping[str, Findings]:
    return {way.name: found(run(way, TINY)[0]) for way in WAYS}


def test_routing_by_chunks_keeps_its_lead(ways: Mapping[str, Findings]) -> None:
    of_p95, of_loads = gain(ways)
    assert of_p95 >= 1.2
    assert of_loads >= 1.1
    assert verdict(ways).startswith("routing by chunks ships")
    ours = ways[CHUNKS.name]
    for name in (SERVE.name, RENDEZVOUS.name):
        for phase, one in ours.phases.items():
            assert one.num_loads < ways[name].phases[phase].num_loads, (name, phase)
            assert one.hit_ratio > ways[name].phases[phase].hit_ratio, (name, phase)


def test_below_the_least_gain_rendezvous_ships(ways: Mapping[str, Findings]) -> None:
    equal = dict(ways) | {CHUNKS.name: ways[RENDEZVOUS.name]}
    assert verdict(equal).startswith("rendezvous hashing ships: 1.00 x")


def test_what_is_reported_is_named_by_phase_and_way(ways: Mapping[str, Findings]) -> None:
    by_name = {one.name: one for one in measurements(ways)}
    for phase in ("day", "steady", "flash", "loss", "roll"):
        one = by_name[f"ttft_p95_{phase}_over_rendezvous"]
        assert one.ratio == pytest.approx((one.baseline or 0) / one.value)
    assert by_name["hit_ratio_day_over_serve"].value == ways[CHUNKS.name].day.hit_ratio
    loaded = sum(by_name[f"{tier}_bytes_chunks"].value for tier in ("disk", "peer", "objects"))
    assert loaded > 0
    assert by_name["decision_ms_chunks"].value > 0


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_the_same_seed_gives_the_same_day(way: WayOfChoosing) -> None:
    plan = TINY.but(num_questions=150)

    def day(seed: int) -> list[tuple[float, tuple[Tier, ...]]]:
        return [(one.ttft_ms, one.tiers) for one in run(way, plan.but(seed=seed))[0].answers]

    assert day(1) == day(1)
    assert day(1) != day(2)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_every_question_is_answered_and_nothing_is_mixed_up(way: WayOfChoosing) -> None:
    plan = TINY.but(num_questions=500, load=20.0, lost_share=0.5)  # so busy that some are lost on the way
    day, simulation, chooser = run(way, plan)
    assert len(day.answers) == plan.num_questions
    assert day.num_sent > plan.num_questions
    assert all(len(answer.tiers) == len(answer.question.chunks) for answer in day.answers)
    least = min(answer.ttft_ms for answer in day.answers)
    assert least > 0
    simulation.machines.check_invariants()
    if isinstance(chooser, ByChunkCost):
        for router in chooser.routers:
            router.check_invariants()


def test_a_router_sees_what_holders_have() -> None:
    """Without losses and with quick reports, what it was told to be there was there, nearly always."""
    day, _, chooser = run(
        CHUNKS, TINY.but(report_loss=0.0, report_ms=100.0, lag_ms=1.0, num_questions=500, lost_share=0.0)
    )
    counts = chooser.counts()
    assert day.num_snapshots == 0
    assert ReportOutcome.MALFORMED not in counts.reports
    assert counts.route_stale < 0.002 * (counts.hits + counts.misses)


def test_lost_reports_are_asked_for_again() -> None:
    day, _, chooser = run(CHUNKS, TINY.but(report_loss=0.3, num_questions=400))
    assert day.num_snapshots > 0
    assert chooser.counts().reports[ReportOutcome.SNAPSHOT_NEEDED] == day.num_snapshots


def test_whoever_is_told_nothing_still_does_as_well_as_rendezvous_hashing(
    ways: Mapping[str, Findings],
) -> None:
    day, _, chooser = run(CHUNKS, TINY.but(report_loss=1.0))
    assert set(chooser.counts().decisions) == {RouteReason.BLIND}
    assert found(day).day.num_loads < 1.02 * ways[RENDEZVOUS.name].day.num_loads


def test_hits_do_not_decay_under_novel_questions() -> None:
    """Half of the questions are about anything; those about what is asked often stay as well served."""
    halves = Phase("first", 0.3, 0.54), Phase("second", 0.54, 0.78)  # before pools are emptied
    plan = TINY.but(novel_share=0.5, num_questions=3_000, load=1.0, lost_share=0.0, flash_share=0.0)
    day, *_ = run(CHUNKS, plan)
    asked_often = {wanted_chunk(number).key for number in range(10 * 48)}
    ratios = []
    for half in halves:
        tiers = [
            tier
            for answer in day.answers
            if half.covers(answer.share) and answer.question.chunks[0].key in asked_often
            for tier in answer.tiers
        ]
        ratios.append(tiers.count(Tier.RESIDENT) / len(tiers))
    assert ratios[1] > 0.85 * ratios[0]
    assert ratios[1] > 0.4


def test_a_fleet_at_its_limits_keeps_what_it_holds() -> None:
    """More than links can bring: waits grow, and yet hits do not collapse, nor is it worse than hashing."""
    plan = TINY.but(novel_share=0.5, load=3.0, num_questions=2_500, lost_share=0.0, flash_share=0.0)
    ours, hashed = (found(run(way, plan)[0]).day for way in (CHUNKS, RENDEZVOUS))
    assert ours.hit_ratio > 1.2 * hashed.hit_ratio
    assert ours.ttft_p50_ms < 1.05 * hashed.ttft_p50_ms
    assert ours.ttft_p95_ms < 1.05 * hashed.ttft_p95_ms


def test_a_crowd_does_not_pile_up_where_the_first_one_went() -> None:
    plan = TINY.but(flash_share=0.9, lost_share=0.0)
    day, *_ = run(CHUNKS, plan)
    of_crowd = Phase("crowd", 0.5, 0.57)
    times = sorted(answer.ttft_ms for answer in day.answers if of_crowd.covers(answer.share))
    calm = sorted(answer.ttft_ms for answer in day.answers if Phase("calm", 0.35, 0.42).covers(answer.share))
    assert times[len(times) * 9 // 10] < calm[len(calm) * 9 // 10]


def test_rendezvous_keeps_its_bound() -> None:
    plan = TINY.but(num_questions=1)
    machines, chooser = Machines(plan), ByRendezvous(plan)
    chooser.changed(machines.replicas)
    question = RoutedQuestion((wanted_chunk(1),), 10)
    for _ in range(160):
        chooser.choose(question, machines.replicas, 0).ongoing += 1
    ongoing = sorted((replica.ongoing for replica in machines.replicas.values()), reverse=True)
    assert sum(ongoing) == 160
    assert ongoing[0] <= 13  # a quarter more than ten


def test_the_nearest_tier_serves() -> None:
    machines = Machines(TINY)
    replicas = list(machines.replicas.values())
    first, same_node, elsewhere = replicas[0], replicas[1], replicas[-1]
    cold = RoutedQuestion((wanted_chunk(49_999),), 0)
    for replica in (first, same_node, elsewhere):
        replica.free_ms = 1e6  # busy: nothing is computed
    tiers = [machines.serve(cold, replica, 0).tiers[0] for replica in (first, same_node, elsewhere)]
    assert tiers == [Tier.OBJECTS, Tier.DISK, Tier.PEER]
    assert machines.serve(cold, first, 0).tiers == (Tier.ARRIVING,)
    assert machines.serve(cold, first, 1e5).tiers == (Tier.RESIDENT,)
    machines.check_invariants()


def test_a_replica_that_is_started_again_has_another_name_and_an_empty_pool() -> None:
    machines = Machines(TINY)
    before = machines.stop(3)
    assert before is not None
    assert machines.at(3) is None
    assert machines.stop(3) is None
    after = machines.start(3)
    assert after.replica_id != before.replica_id
    assert after.node is before.node
    assert not after.pool.ready_ms


def test_questions_of_a_subject_are_alike_and_hardly_ever_equal() -> None:
    plan = TINY.but(flash_share=1.0, num_questions=500)
    asked = list(arrivals(plan))
    assert [arrival.at_ms for arrival in asked] == sorted(arrival.at_ms for arrival in asked)
    assert 0 <= asked[0].at_ms <= asked[-1].at_ms <= plan.day_ms
    crowd = [
        {chunk.key for chunk in arrival.question.chunks}
        for arrival in asked
        if 0.45 <= arrival.at_ms / plan.day_ms < 0.58
    ]
    assert len(crowd) > 40
    shared = [len(one & other) for one, other in itertools.pairwise(crowd)]
    assert 3 < sum(shared) / len(shared) < 9
    assert all(number < plan.chunks_per_question for number in shared)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_replicas": 1}, "num_replicas"),
        ({"num_questions": 0}, "num_questions"),
        ({"num_chunks": 100}, "num_chunks"),
        ({"pool_chunks": 4}, "pool_chunks"),
        ({"disk_chunks": 0}, "disk_chunks"),
        ({"stray_chunks": 17}, "stray_chunks"),
        ({"stray_chunks": -1}, "stray_chunks"),
        ({"chunks_per_question": 60}, "stray_chunks"),
        ({"load": 0.0}, "load"),
        ({"load": float("nan")}, "load"),
        ({"report_ms": 0.0}, "report_ms"),
        ({"lag_ms": float("inf")}, "lag_ms"),
        ({"lost_share": 0.8}, "lost_share"),
        ({"novel_share": 1.5}, "novel_share"),
        ({"routers": 0}, "routers"),
    ],
)
def test_a_day_that_cannot_be_is_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        TINY.but(**change)


def test_the_command_prints_and_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, picture = tmp_path / "routing.json", tmp_path / "routing.svg"
    small = ["--ci", "--replicas", "8", "--chunks", "20000", "--questions", "200"]
    assert main(["simulate", *small, "--json", str(report), "--plot", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert "over rendezvous hashing with a load bound" in printed
    assert "decided as " in printed
    written = json.loads(report.read_text(encoding="utf-8"))
    assert written["details"]["plan"] == dataclasses.asdict(
        SMALL.but(num_replicas=8, num_chunks=20_000, num_questions=200)
    )
    assert {"ttft_p95_day_over_serve", "decision_ms_chunks"} <= {m["name"] for m in written["measurements"]}
    assert picture.read_text(encoding="utf-8").startswith("<svg")


def test_where_it_breaks_is_looked_for_one_change_at_a_time() -> None:
    found_there = list(breaks(TINY.but(num_replicas=8, num_chunks=2_000, disk_chunks=50, num_questions=40)))
    assert [one.name for one in found_there] == [
        f"{of}_{change}" for change in CHANGES for of in ("ttft_p95", "chunk_loads")
    ]
    assert all(one.ratio is not None and one.ratio > 0 for one in found_there)


def test_the_command_names_a_wrong_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--ci", "--load", "-1"]) == 2
    assert "load" in capsys.readouterr().err


def test_phases_cover_what_they_say() -> None:
    assert DAY.covers(0.25)
    assert not DAY.covers(0.2)
    assert not LOSS.covers(LOSS.end)


def test_replicas_that_measure_their_speed_wrong_share_the_day(ways: Mapping[str, Findings]) -> None:
    wrong = found(run(CHUNKS, TINY.but(rates_off=0.33))[0]).day
    assert wrong.ttft_p95_ms < 1.2 * ways[CHUNKS.name].day.ttft_p95_ms
    assert wrong.num_loads < 1.05 * ways[CHUNKS.name].day.num_loads
