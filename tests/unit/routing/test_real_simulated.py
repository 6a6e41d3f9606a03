"""The simulator is asked what real replicas were asked, on machines as fast as they were."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from load_tests.routing.real_findings import DEFAULT, OURS, WAYS, RealAnswer, WayRun
from load_tests.routing.real_plan import STEADY, WARM, RealPlan, planned
from load_tests.routing.real_simulated import compared, measurements
from shared.generation.told import Timings

PLAN = RealPlan(steady=60, novel=8)
PER_DOCUMENT = PLAN.chunks * 80


def answers(plan: RealPlan, load_s: float, prefill_s: float, hit_share: float) -> list[RealAnswer]:
    """Every third loads all; the others hold ``hit_share``."""
    found = []
    for question in (question for questions in planned(plan) for question in questions):
        if question.phase != WARM:
            misses = question.number % 3 == 0
            timings = Timings(load_s=load_s if misses else 0.0, prefill_s=prefill_s, decode_s=0.05)
            share, loaded = (0.0, PER_DOCUMENT) if misses else (hit_share, 0)
            found.append(RealAnswer(question, share, 500.0, timings, PER_DOCUMENT, loaded, 20))
    return found


def runs(
    plan: RealPlan = PLAN, load_s: float = 0.05, prefill_s: float = 0.02, hit_share: float = 1.0
) -> Mapping[str, WayRun]:
    return {way: WayRun(answers(plan, load_s, prefill_s, hit_share)) for way in WAYS}


def test_hits_are_those_of_the_ways_and_not_of_the_answers() -> None:
    found = {one.way: one for one in compared(PLAN, runs())}
    assert list(found) == list(WAYS)
    for one in found.values():
        assert one.measured.hit_ratio == pytest.approx(2 / 3, abs=0.02)
        assert 0 < one.simulated.hit_ratio < 1
    assert found[OURS].simulated.hit_ratio > found[DEFAULT].simulated.hit_ratio + 0.05
    assert [str(one) for one in compared(PLAN, runs())] == [str(one) for one in found.values()]


def test_a_question_takes_as_long_as_it_was_measured_to_take() -> None:
    calm = dataclasses.replace(PLAN, rate=0.2)
    for load_s, prefill_s in ((0.05, 0.02), (0.4, 0.02), (0.001, 0.1)):
        (queue, *_) = compared(calm, runs(calm, load_s, prefill_s))
        assert queue.measured.first_token_p95_ms == pytest.approx((load_s + prefill_s) * 1e3)
        whole = max(load_s, prefill_s) * 1e3  # nobody else is there: both at once, some chunks computed
        assert whole * 0.7 < queue.simulated.first_token_p95_ms < whole * 1.3 + prefill_s * 1e3


def test_a_larger_part_of_the_documents_in_memory_is_found_there() -> None:
    ratios = [
        compared(plan, runs(plan))[-1].simulated.hit_ratio
        for plan in (dataclasses.replace(PLAN, pool_share=share) for share in (0.1, 0.25, 1.0))
    ]
    assert ratios == sorted(ratios)
    assert ratios[-1] > 0.9


def test_only_the_steady_phase_of_the_first_round_is_compared() -> None:
    twice = dataclasses.replace(PLAN, rounds=2)
    asked = runs(twice)
    (first, *_) = compared(twice, asked)
    assert [first, *_] == compared(PLAN, runs())
    slower = {
        way: WayRun(
            [
                answer
                if answer.question.phase == STEADY and answer.question.number == answer.question.place
                else dataclasses.replace(answer, hit_share=0.0)
                for answer in run.answers
            ]
        )
        for way, run in asked.items()
    }
    assert [one.measured for one in compared(twice, slower)] == [
        one.measured for one in compared(twice, asked)
    ]


def test_where_nothing_was_loaded_or_held_there_is_nothing_to_compare() -> None:
    assert compared(PLAN, runs(load_s=0.0)) == []
    assert compared(PLAN, runs(hit_share=0.5)) == []


def test_the_report_has_what_was_measured_beside_what_was_simulated() -> None:
    found = compared(PLAN, runs())
    told = {one.name: one for one in measurements(found)}
    assert len(told) == 2 * len(WAYS)
    ours = next(one for one in found if one.way == OURS)
    assert told["simulated_hit_ratio_chunks"].value == ours.simulated.hit_ratio
    assert told["simulated_first_token_p95_chunks"].baseline == ours.measured.first_token_p95_ms
