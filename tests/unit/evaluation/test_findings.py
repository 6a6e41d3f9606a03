"""Rows, averages and measurements that are made of answers; and the paired test that they rest on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from rich.table import Table

from cluster.evaluation.answers import EvalAnswer
from cluster.evaluation.arms import CLOSED, EvalArm, arms_of
from cluster.evaluation.cases import EvalCase, EvalTask
from cluster.evaluation.findings import TaskFinding, average, find, measurements
from cluster.evaluation.metrics import Metric
from cluster.evaluation.show import shown
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext
from shared.measuring.paired import flip_test, mcnemar, median_of

ARMS = tuple(arms_of((ReuseMode.REORDERED, ReuseMode.CACHECLIP), (KvContext.NONE,), (0.2,)))
LABELS = [arm.label for arm in ARMS]


def task(name: str = "t", grounded: bool = True) -> EvalTask:
    cases = tuple(EvalCase(str(i), "?", (("x",),)) for i in range(10))
    return EvalTask(name, Metric.COVERAGE, 8, cases, grounded)


def answer(mode: str, case: int, score: float, name: str = "t", kl: float = 0.1) -> EvalAnswer:
    found = None if mode in (CLOSED, "full") else 0.5
    return EvalAnswer(name, str(case), mode, score, str(score), kl, 100, 20.0, found, 0.25, 0.5, 2.0)


def answers(right: dict[str, float], name: str = "t") -> list[EvalAnswer]:
    """Of ten cases in each mode so many right ones; a half counts half."""
    return [
        answer(mode, case, min(1.0, max(0.0, num - case)), name)
        for mode, num in right.items()
        for case in range(10)
    ]


def found(right: dict[str, float], grounded: bool = True, arms: Sequence[EvalArm] = ARMS) -> TaskFinding:
    (finding,) = find(answers(right), [task(grounded=grounded)], {"t": arms})
    return finding


def test_a_row_tells_score_difference_kl_and_cost() -> None:
    finding = found(dict(zip(LABELS, (0, 8, 4, 6), strict=True)))
    assert (finding.task, finding.metric, finding.num_cases, finding.counts) == ("t", "coverage", 10, True)
    assert [row.mode for row in finding.rows] == LABELS
    row = finding.row("reordered none")
    assert row.score.value == pytest.approx(0.4)
    assert row.score.low < 0.4 < row.score.high
    assert row.against_full.value == pytest.approx(-0.4)
    assert row.p == mcnemar(0, 4)
    assert row.of_full is not None
    assert row.of_full.value == pytest.approx(0.5)
    assert 0 < row.of_full.low < 0.5 < row.of_full.high < 1
    assert row.kl.value == pytest.approx(0.1)
    assert row.same == 0.6
    assert (row.computed, row.found, row.cut_short, row.tflop, row.seconds) == (0.2, 0.5, 0.25, 0.5, 2.0)


def test_there_is_no_share_of_a_full_that_answers_nothing() -> None:
    row = found(dict(zip(LABELS, (0, 0, 0, 0), strict=True)), grounded=False).row("reordered none")
    assert row.of_full is None


def test_an_interval_is_wide_also_where_all_answers_are_right() -> None:
    row = found(dict(zip(LABELS, (0, 10, 10, 10), strict=True))).row("full")
    assert row.score.value == 1
    assert row.score.low < 0.8


def test_scores_between_0_and_1_are_tested_by_flipping_signs() -> None:
    finding = found(dict(zip(LABELS, (0, 8.5, 4, 6), strict=True)))
    row = finding.row("reordered none")
    assert row.against_full.value == pytest.approx(-0.45)
    assert row.p == pytest.approx(1 / 16, abs=0.02)


def test_where_full_does_not_beat_closed_book_only_kl_is_reported() -> None:
    finding = found(dict(zip(LABELS, (7, 8, 4, 6), strict=True)))
    assert not finding.counts
    names = {m.name for m in measurements([finding], [])}
    assert {"kl_t_reordered_none", "tflop_t_full", "time_t_full", "computed_t_cacheclip_20_none"} <= names
    assert not {"t_full", "p_t_full", "against_full_t_full", "cut_short_t_full"} & names
    heading, table, said, _ = shown([finding], [])
    assert heading == "t: coverage, 10 cases of 100 tokens in documents"
    assert isinstance(table, Table)
    assert [column.header for column in table.columns] == [
        "mode",
        "KL",
        "as full",
        "computed",
        "of the value",
        "TFLOP",
        "s",
    ]
    assert "only KL is reported, as full does not beat closed book by 20 points" in str(said)
    assert found(dict(zip(LABELS, (7, 8, 4, 6), strict=True)), grounded=False).counts


def test_cases_count_once_they_are_asked_in_all_modes() -> None:
    told = answers(dict(zip(LABELS, (0, 8, 4, 6), strict=True)))
    some = [a for a in told if not (a.mode == "full" and a.case in "012")]
    (finding,) = find(some, [task()], {"t": ARMS})
    assert finding.num_cases == 7
    assert not find([a for a in told if a.mode != "full"], [task()], {"t": ARMS})


def test_measurements_have_names_intervals_and_what_they_are_compared_with() -> None:
    told = {m.name: m for m in measurements([found(dict(zip(LABELS, (0, 8, 4, 6), strict=True)))], [])}
    of_clip = told["t_cacheclip_20_none"]
    assert of_clip.min is not None
    assert of_clip.max is not None
    assert of_clip.min < of_clip.value < of_clip.max
    assert (of_clip.value, of_clip.baseline, of_clip.n) == (0.6, 0.8, 10)
    assert of_clip.ratio == pytest.approx(0.75)
    assert told["against_full_t_closed_book"].value == pytest.approx(-0.8)


def test_an_average_is_over_the_tasks_that_count() -> None:
    tasks = [task("a"), task("b"), task("c")]
    told = [
        *answers(dict(zip(LABELS, (0, 8, 4, 6), strict=True)), "a"),
        *answers(dict(zip(LABELS, (0, 4, 4, 2), strict=True)), "b"),
        *answers(dict(zip(LABELS, (3, 4, 0, 0), strict=True)), "c"),
    ]
    every = find(told, tasks, {one.name: ARMS for one in tasks})
    mean = average("mean", ("a", "b", "c"), every)
    assert mean is not None
    assert (mean.counted, len(mean.tasks)) == (2, 3)
    assert mean.scores["full"] == pytest.approx(0.6)
    assert mean.scores["cacheclip 20% none"] == pytest.approx(0.4)
    assert average("mean", ("c",), every) is None
    assert "average_mean_full" in {m.name for m in measurements(every, [mean])}


@pytest.mark.parametrize("differences", [(1.0, 1, 1, 1, -1), (0.5, 0.25, 1, 0, 0.5), (0, 0), (1, -1)])
def test_flipping_signs_finds_how_often_a_mean_is_as_large_by_chance(differences: Sequence[float]) -> None:
    moved = [d for d in differences if d]
    sums = [
        abs(sum(s * d for s, d in zip(signs, moved, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(moved))
    ]
    exact = sum(one >= abs(sum(moved)) - 1e-12 for one in sums) / len(sums)
    assert flip_test(np.array(differences, dtype=np.float64)) == pytest.approx(exact, abs=0.02)


def test_the_interval_of_a_median_holds_it() -> None:
    found = median_of([1.0, 2.0, 3.0, 100.0, 4.0])
    assert found.low <= found.value == 3.0 <= found.high
    alone = median_of([2.0])
    assert (alone.low, alone.value, alone.high) == (2.0, 2.0, 2.0)
