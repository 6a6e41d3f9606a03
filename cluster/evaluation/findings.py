"""Finds what answers say: of each task a row per arm, with intervals and paired tests against `full`; and the
same numbers as measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from cluster.evaluation.answers import EvalAnswer
from cluster.evaluation.arms import CLOSED, FULL, EvalArm
from cluster.evaluation.cases import EvalTask
from shared.measuring.paired import Clusters, Floats, Interval, flip_test, mcnemar, wilson
from shared.measuring.report import Measurement

COUNTS_FROM = 0.2


@dataclass(frozen=True, slots=True)
class EvalRow:
    """
    One way of answering one task; means over its cases.

    score: with Wilson's interval where every score is 0 or 1, else a bootstrap's.
    against_full: what it differs by, bootstrapped; p: of the paired test with ``full``: McNemar's exact one
    where every score is 0 or 1, else by flipping signs.
    of_full: the share of ``full``'s score that this has, bootstrapped over cases (paired); None where that
    is 0. Its lower end is what is surely kept: a mode is not below 97 % of ``full`` if that is 0.97 or more.
    kl: to ``full``, of the first token; same: share of answers that are those of ``full`` to the letter.
    computed: share of the context's tokens that were computed for the answer; found: see ``EvalAnswer``.
    """

    mode: str
    score: Interval
    against_full: Interval
    of_full: Interval | None
    p: float
    kl: Interval
    same: float
    computed: float
    found: float | None
    cut_short: float | None
    tflop: float
    seconds: float


@dataclass(frozen=True, slots=True)
class TaskFinding:
    """``counts``: `full` beats closed book by 20 points, or need not (``EvalTask.grounded``); else only KL
    says anything. ``num_tokens``: mean of a context."""

    task: str
    metric: str
    num_cases: int
    num_tokens: float
    counts: bool
    rows: Sequence[EvalRow]

    def row(self, mode: str) -> EvalRow:
        return next(row for row in self.rows if row.mode == mode)


@dataclass(frozen=True, slots=True)
class Average:
    """Of some tasks, each counting alike; ``scores`` by mode. ``counted``: of how many of ``tasks``: those
    that were asked and count."""

    name: str
    tasks: Sequence[str]
    counted: int
    scores: Mapping[str, float]


def find(
    answers: Sequence[EvalAnswer], tasks: Sequence[EvalTask], arms: Mapping[str, Sequence[EvalArm]]
) -> list[TaskFinding]:
    """Of cases that were asked in all of ``arms``, by task; tasks without such cases are left out."""
    return [finding for task in tasks if (finding := _of_task(task, arms[task.name], answers)) is not None]


def average(name: str, tasks: Sequence[str], found: Sequence[TaskFinding]) -> Average | None:
    """None: none of ``tasks`` counts."""
    of_them = [finding for finding in found if finding.task in tasks and finding.counts]
    if not of_them:
        return None
    modes = [row.mode for row in of_them[0].rows]
    scores = {mode: fmean(finding.row(mode).score.value for finding in of_them) for mode in modes}
    return Average(name, tasks, len(of_them), scores)


def measurements(found: Sequence[TaskFinding], averages: Sequence[Average]) -> Iterator[Measurement]:
    for finding in found:
        for row in finding.rows:
            yield from _measured(finding, row)
    for one in averages:
        for mode, score in one.scores.items():
            full = one.scores.get(FULL.label)
            ratio = score / full if full else None
            name = f"average_{_name(one.name)}_{_name(mode)}"
            yield Measurement(name, score, "fraction", full, ratio, n=one.counted)


def _of_task(task: EvalTask, arms: Sequence[EvalArm], answers: Sequence[EvalAnswer]) -> TaskFinding | None:
    by_mode: dict[str, dict[str, EvalAnswer]] = {arm.label: {} for arm in arms}
    for answer in answers:
        if answer.task == task.name and answer.mode in by_mode:
            by_mode[answer.mode][answer.case] = answer
    common = sorted(set.intersection(*(set(of_mode) for of_mode in by_mode.values())))
    if not common:
        return None
    asked = {mode: [of_mode[case] for case in common] for mode, of_mode in by_mode.items()}
    rows = [_row(mode, asked) for mode in asked]
    known = {row.mode: row.score.value for row in rows}
    counts = (
        not task.grounded
        or CLOSED not in known
        or known.get(FULL.label, known[CLOSED]) - known[CLOSED] >= COUNTS_FROM - 1e-9
    )
    num_tokens = max(fmean(answer.num_tokens for answer in of_mode) for of_mode in asked.values())
    return TaskFinding(task.name, task.metric.value, len(common), num_tokens, counts, rows)


def _row(mode: str, asked: Mapping[str, Sequence[EvalAnswer]]) -> EvalRow:
    ours = asked[mode]
    full = asked.get(FULL.label, ours)
    ours_Q, full_Q = _scores(ours), _scores(full)
    clusters = Clusters(np.arange(len(ours)))
    computed = [answer.computed / answer.num_tokens for answer in ours if answer.num_tokens]
    found = [answer.found for answer in ours if answer.found is not None]
    short = [answer.cut_short for answer in ours if answer.cut_short is not None]
    return EvalRow(
        mode,
        _proportion(ours_Q) if _binary(ours_Q) else clusters.interval(_itself, ours_Q),
        clusters.interval(np.subtract, ours_Q, full_Q),
        clusters.interval(np.divide, ours_Q, full_Q) if full_Q.any() else None,
        _paired_p(ours_Q, full_Q),
        clusters.interval(_itself, np.array([answer.kl for answer in ours])),
        fmean(a.text == b.text for a, b in zip(ours, full, strict=True)),
        fmean(computed) if computed else 0.0,
        fmean(found) if found else None,
        fmean(short) if short else None,
        fmean(answer.tflop for answer in ours),
        fmean(answer.seconds for answer in ours),
    )


def _measured(finding: TaskFinding, row: EvalRow) -> Iterator[Measurement]:
    """Without scores where these say nothing."""
    name, num = f"{_name(finding.task)}_{_name(row.mode)}", finding.num_cases
    full = next((one.score.value for one in finding.rows if one.mode == FULL.label), None)
    if finding.counts:
        ratio = row.score.value / full if full else None
        yield Measurement(
            name,
            row.score.value,
            "fraction",
            full,
            ratio,
            min=row.score.low,
            max=row.score.high,
            n=num,
            tflop=row.tflop,
        )
        against = row.against_full
        yield Measurement(
            f"against_full_{name}", against.value, "fraction", min=against.low, max=against.high, n=num
        )
        if row.of_full is not None:
            of_full = row.of_full
            yield Measurement(
                f"of_full_{name}", of_full.value, "fraction", min=of_full.low, max=of_full.high, n=num
            )
        yield Measurement(f"p_{name}", row.p, "probability", n=num)
        if row.cut_short is not None:
            yield Measurement(f"cut_short_{name}", row.cut_short, "fraction", n=num)
    yield Measurement(f"kl_{name}", row.kl.value, "nats", min=row.kl.low, max=row.kl.high, n=num)
    yield Measurement(f"as_full_{name}", row.same, "fraction", n=num)
    yield Measurement(f"computed_{name}", row.computed, "fraction", n=num)
    yield Measurement(f"tflop_{name}", row.tflop, "TFLOP", n=num, tflop=row.tflop)
    yield Measurement(f"time_{name}", row.seconds, "s", n=num)


def _name(label: str) -> str:
    return label.replace(" ", "_").replace("%", "")


def _scores(answers: Sequence[EvalAnswer]) -> Floats:
    return np.array([answer.score for answer in answers], dtype=np.float64)


def _binary(scores_Q: Floats) -> bool:
    return bool(np.isin(scores_Q, (0.0, 1.0)).all())


def _proportion(scores_Q: Floats) -> Interval:
    low, high = wilson(int(scores_Q.sum()), len(scores_Q))
    return Interval(float(scores_Q.mean()), low, high)


def _paired_p(ours_Q: Floats, full_Q: Floats) -> float:
    if _binary(ours_Q) and _binary(full_Q):
        return mcnemar(int((ours_Q > full_Q).sum()), int((ours_Q < full_Q).sum()))
    return flip_test(ours_Q - full_Q)


def _itself(ours: Floats) -> Floats:
    return ours
