"""What a run against real replicas reports, of answers that are made up: no Ray."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest

from load_tests.routing.real_findings import (
    OURS,
    WAYS,
    RealAnswer,
    WayRun,
    findings,
    flatness,
    gains,
    measurements,
    verdict,
    way_runs,
)
from load_tests.routing.real_plan import (
    NOVEL,
    SMOKE,
    STEADY,
    WARM,
    PlannedQuestion,
    RealPlan,
    num_documents,
    planned,
)
from load_tests.routing.real_table import real_table
from load_tests.service.sample import OK, Reply, Sample
from shared.errors import InvalidRequest
from shared.generation.told import Timings, Usage

PLAN = RealPlan(steady=120)
(QUESTIONS,) = planned(PLAN)
Hits = Callable[[PlannedQuestion, random.Random], float]


def run(hits: Hits, miss_ms: float = 100.0, seed: int = 0) -> WayRun:
    """An answer takes 50 ms, and what is missing its part of ``miss_ms``."""
    draw = random.Random(seed)
    answers = []
    for question in QUESTIONS:
        if question.phase != WARM:
            share = 0.0 if question.novel else hits(question, draw)
            answers.append(RealAnswer(question, share, 50 + miss_ms * (1 - share)))
    draw.shuffle(answers)  # as they happen to end
    return WayRun(answers)


def often(share: float) -> Hits:
    return lambda question, draw: float(draw.random() < share)


def test_every_way_is_asked_the_same_and_subjects_by_a_zipf_law() -> None:
    assert planned(PLAN) == [QUESTIONS]
    assert planned(dataclasses.replace(PLAN, seed=1)) != [QUESTIONS]
    assert [q.number for q in QUESTIONS] == list(range(PLAN.warm + PLAN.steady + PLAN.novel))
    about = [q.document for q in QUESTIONS if not q.novel]
    assert about.count(0) > 3 * about.count(PLAN.subjects - 1)
    assert max(about) < PLAN.subjects


def test_rounds_ask_other_questions_of_the_same_kind() -> None:
    plan = dataclasses.replace(PLAN, rounds=3)
    rounds = planned(plan)
    assert rounds[0] == QUESTIONS
    assert [q.place for q in rounds[2]] == [q.place for q in QUESTIONS]
    assert [q.number for questions in rounds for q in questions] == list(range(3 * len(QUESTIONS)))
    assert [q.document for q in rounds[1] if not q.novel] != [q.document for q in QUESTIONS if not q.novel]
    novel = [q.document for questions in rounds for q in questions if q.novel]
    assert novel == list(range(PLAN.subjects, num_documents(rounds, plan))), "each asked about once"


def test_what_is_novel_is_asked_about_once_and_in_the_last_phase() -> None:
    novel = [q for q in QUESTIONS if q.novel]
    assert {q.phase for q in novel} == {NOVEL}
    assert [q.document for q in novel] == list(range(PLAN.subjects, num_documents([QUESTIONS], PLAN)))
    assert len(novel) == pytest.approx(PLAN.novel * PLAN.novel_share, abs=8)


def test_what_was_loaded_or_computed_beside_its_loading_is_no_hit() -> None:
    prefix, chunks = 10, 100
    about = [PlannedQuestion(number, number, STEADY, number // 3, novel=False) for number in range(6)]

    def sample(number: int, reused: int, loaded: int) -> Sample:
        usage = Usage(prefix + chunks + 5, prefix + reused, chunks - reused + 5, 4, loaded_tokens=loaded)
        return Sample(number, 1.0, 1.0, first_token_s=1.2, last_token_s=1.3).end(
            1.4, OK, reply=Reply(usage, Timings())
        )

    asked = [sample(0, chunks, 0), sample(1, chunks, 100), sample(2, 60, 40), sample(3, chunks, 25)]
    asked += [Sample(4, 1.0, 1.0).end(1.1, "UNAVAILABLE", "the replica died"), sample(5, chunks, 75)]
    run = way_runs(about, {OURS: asked}, {OURS: {"stale": 2.0}}, prefix)[OURS]
    assert [(a.question.number, a.hit_share) for a in run.answers] == [
        (0, 1.0),
        (1, 0.0),
        (2, 0.2),
        (3, 0.75),
        (5, 0.25),
    ]
    assert run.answers[0].ttft_ms == pytest.approx(200)
    assert (run.failed, run.told) == ({"UNAVAILABLE the replica died": 1}, {"stale": 2.0})


def test_loads_hits_and_times_are_those_of_the_steady_phase() -> None:
    half = run(lambda question, draw: 0.5 if question.phase == STEADY else 1.0)
    found = findings(half, PLAN)
    assert found.hit_ratio.value == found.hit_ratio.low == found.hit_ratio.high == 0.5
    assert found.chunk_loads.value == PLAN.chunks / 2
    assert found.ttft_p50_ms.value == found.ttft_p95_ms.value == 100


def test_intervals_hold_what_answers_were_drawn_from() -> None:
    covered = 0
    for seed in range(20):
        found = findings(run(often(0.7), seed=seed), PLAN)
        assert found.hit_ratio.low <= found.hit_ratio.value <= found.hit_ratio.high
        covered += found.hit_ratio.low <= 0.7 <= found.hit_ratio.high
    assert covered >= 16


def test_gains_are_of_the_questions_that_both_answered() -> None:
    ours, other = run(lambda q, d: 0.75), run(lambda q, d: 0.25, miss_ms=200)
    over = gains(ours, other)
    assert over.chunk_loads.value == pytest.approx(3.0)
    assert over.ttft_p95.value == pytest.approx(200 / 75)
    half = WayRun([a for a in other.answers if a.question.number % 2], {"UNAVAILABLE": 60})
    assert gains(ours, half).chunk_loads.value == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        (0.9, "the aim of 1.5 x is reached"),
        (0.66, "reached, within the error"),
        (0.52, "below the aim of 1.5 x"),
    ],
)
def test_it_is_said_whether_the_aim_is_reached_and_how_surely(ours: float, said: str) -> None:
    # nearly the same chance for both, so that the mean is what it was drawn from
    runs = {way: run(lambda q, d: float(q.number % 100 < 50)) for way in WAYS}
    runs[OURS] = run(lambda q, d: float((7 * q.number) % 100 < 100 * ours), seed=3)
    first, *_ = verdict(runs)
    assert first.startswith("chunk_loads: ")
    assert "times better than queue" in first
    assert said in first


def test_questions_without_an_answer_are_said() -> None:
    runs = {way: run(often(0.5)) for way in WAYS}
    runs[OURS] = dataclasses.replace(runs[OURS], failed={"UNAVAILABLE the replica died": 3})
    assert list(verdict(runs))[-1] == (
        "chunks: 3 questions without a whole answer: UNAVAILABLE the replica died"
    )


def test_hits_that_fall_under_novel_questions_are_told_from_those_that_vary() -> None:
    first_novel = PLAN.warm + PLAN.steady

    def falling(question: PlannedQuestion, draw: random.Random) -> float:
        return float(draw.random() < 0.9 - 0.8 * max(0, question.number - first_novel) / PLAN.novel)

    fallen = flatness(run(falling))
    assert fallen.decays
    assert fallen.quarters[0] > fallen.quarters[-1]
    assert fallen.change.high < 0
    assert sum(flatness(run(often(0.5), seed=seed)).decays for seed in range(60)) <= 5
    assert not flatness(run(lambda q, d: 0.5)).decays


def test_the_report_names_what_the_targets_go_by() -> None:
    runs = {way: run(often(0.5)) for way in WAYS}
    runs[OURS] = dataclasses.replace(
        run(often(0.8)), told={"decision_s": 0.5, "decisions": 250.0, "stale": 7}
    )
    told = {one.name: one for one in measurements(runs, PLAN)}
    assert {"chunk_loads", "ttft_p95", "decision_ms", "hit_ratio_over_rendezvous"} <= told.keys()
    loads = told["chunk_loads"]
    assert loads.baseline is not None
    assert loads.ratio == pytest.approx(loads.baseline / loads.value)
    assert loads.n == PLAN.steady
    assert told["decision_ms"].value == 2.0
    assert [column.header for column in real_table(runs, PLAN).columns][-1] == "stale chunks"


@pytest.mark.parametrize(
    "field", ["replicas", "subjects", "pool_share", "zipf", "rate", "steady", "rounds", "link_mb_per_s"]
)
def test_what_makes_no_sense_is_refused_by_name(field: str) -> None:
    for value in (-1, float("nan")):
        with pytest.raises(InvalidRequest, match=f"^{field}: "):
            dataclasses.replace(SMOKE, **{field: value})  # type: ignore[arg-type]
