"""Finds what kept answers say: a row per arm, and the same numbers as measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
from rich.console import Console
from rich.table import Table

from cluster.evaluation.arms import FULL, EvalArm
from load_tests.reading.bench import ReadingAnswer
from shared.kv_types import KvContext
from shared.measuring.paired import Clusters, Floats, Interval
from shared.measuring.report import Measurement


@dataclass(frozen=True, slots=True)
class ReadingRow:
    """
    contains, f1, exact: means over the questions. against_full, against_isolated: what ``contains`` differs
    by, the second from the same mode over isolated chunks (None: it is that, or uses none).
    kl: mean, to ``full``. same: the share of answers that are those of ``full`` to the letter.
    ttft_s: median over contexts.
    """

    arm: str
    contains: Interval
    against_full: Interval
    against_isolated: Interval | None
    f1: Interval
    exact: float
    kl: Interval
    same: float
    ttft_s: float
    num_questions: int


@dataclass(frozen=True, slots=True)
class ReadingFindings:
    """``num_tokens``: mean per context."""

    rows: tuple[ReadingRow, ...]
    num_questions: int
    num_contexts: int
    num_articles: int
    num_tokens: float


def findings(answers: Sequence[ReadingAnswer], arms: Sequence[EvalArm]) -> ReadingFindings | None:
    """Of contexts that have been asked about in all arms; intervals resample articles. None: there are
    none."""
    by_arm = {arm.label: {(a.context, a.number): a for a in answers if a.mode == arm.label} for arm in arms}
    common = sorted(set.intersection(*(set(of_arm) for of_arm in by_arm.values())))
    if not common:
        return None
    asked = {label: [of_arm[key] for key in common] for label, of_arm in by_arm.items()}
    full = asked[FULL.label]
    clusters = Clusters(np.array([answer.article for answer in full]))
    rows = tuple(_row(arm, asked, clusters) for arm in arms)
    return ReadingFindings(
        rows,
        len(common),
        len({context for context, _ in common}),
        len({answer.article for answer in full}),
        fmean(answer.num_tokens for answer in full),
    )


def _row(arm: EvalArm, asked: dict[str, list[ReadingAnswer]], clusters: Clusters) -> ReadingRow:
    ours, full = asked[arm.label], asked[FULL.label]
    isolated = asked.get(EvalArm(arm.mode, KvContext.NONE, arm.ratio).label)
    if arm.context in (None, KvContext.NONE):
        isolated = None
    ttft_of = {answer.context: answer.ttft_s for answer in ours}
    return ReadingRow(
        arm.label,
        clusters.interval(_itself, _right(ours)),
        clusters.interval(_difference, _right(ours), _right(full)),
        None if isolated is None else clusters.interval(_difference, _right(ours), _right(isolated)),
        clusters.interval(_itself, np.array([answer.f1 for answer in ours])),
        fmean(answer.exact for answer in ours),
        clusters.interval(_itself, np.array([answer.kl for answer in ours])),
        fmean(a.text == b.text for a, b in zip(ours, full, strict=True)),
        median(ttft_of.values()),
        len(ours),
    )


def measurements(found: ReadingFindings) -> Iterator[Measurement]:
    full = next(row for row in found.rows if row.arm == FULL.label)
    for row in found.rows:
        name = row.arm.replace(" ", "_").replace("%", "")
        for what, value in (("contains", row.contains), ("f1", row.f1)):
            of_full = full.contains.value if what == "contains" else full.f1.value
            ratio = value.value / of_full if of_full else None
            yield Measurement(
                f"{what}_{name}",
                value.value,
                "fraction",
                of_full,
                ratio,
                min=value.low,
                max=value.high,
                n=row.num_questions,
            )
        yield Measurement(f"exact_{name}", row.exact, "fraction", full.exact, n=row.num_questions)
        yield Measurement(
            f"kl_{name}", row.kl.value, "nats", min=row.kl.low, max=row.kl.high, n=row.num_questions
        )
        ratio = full.ttft_s / row.ttft_s if row.ttft_s else None
        yield Measurement(f"ttft_{name}", row.ttft_s, "s", full.ttft_s, ratio, n=found.num_contexts)


def show(console: Console, found: ReadingFindings) -> None:
    title = (
        f"{found.num_questions} questions about {found.num_contexts} contexts of {found.num_articles} "
        f"articles, {found.num_tokens:.0f} tokens each on average"
    )
    table = Table(title=title, title_justify="left")
    for heading in (
        "", "answer found", "minus full", "minus isolated", "F1", "exact", "KL", "as full", "first token"
    ):  # fmt: skip
        table.add_column(heading, justify="right" if heading else "left")
    for row in found.rows:
        table.add_row(
            row.arm,
            _percent(row.contains),
            "" if row.arm == FULL.label else _percent(row.against_full, signed=True),
            "" if row.against_isolated is None else _percent(row.against_isolated, signed=True),
            _percent(row.f1),
            f"{row.exact:.1%}",
            "" if row.arm == FULL.label else f"{row.kl.value:.3f} ({row.kl.low:.3f} to {row.kl.high:.3f})",
            f"{row.same:.0%}",
            f"{row.ttft_s * 1000:.0f} ms",
        )
    console.print(table)


def _right(answers: Sequence[ReadingAnswer]) -> Floats:
    return np.array([float(answer.contains) for answer in answers])


def _itself(ours: Floats) -> Floats:
    return ours


def _difference(ours: Floats, theirs: Floats) -> Floats:
    return ours - theirs


def _percent(interval: Interval, signed: bool = False) -> str:
    value, low, high = (
        f"{100 * part:+.1f}" if signed else f"{100 * part:.1f}"
        for part in (interval.value, interval.low, interval.high)
    )
    return f"{value} ({low} to {high})"
