"""Finds what kept answers say: one table per kind of question, and the same numbers as
measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from load_tests.quality.ledger import FIRST_LAYER, GradedAnswer
from load_tests.quality.modes import CACHECLIP
from load_tests.quality.paired import Bools, Clusters, Interval, mcnemar, won_back
from shared.generation.modes import ReuseMode
from shared.measuring.judge import Score
from shared.measuring.report import Measurement

FULL, REORDERED, ATTENTION = ReuseMode.FULL.value, ReuseMode.REORDERED.value, ReuseMode.QUERY_ATTENTION.value
SPREAD, SINGLE = "spread", "single"


@dataclass(frozen=True, slots=True)
class ModeResult:
    """One mode on one kind of question.

    selected: share of the context's tokens that were recomputed; found: of the asked-for value's tokens, how
    many are among them.
    against_full: difference of the shares of right answers; won_back: of what ``full`` gets right beyond
    ``reordered``.
    p: of the paired test with ``cacheclip``; ahead, behind: questions that only this mode, or only
    ``cacheclip``, answers.
    """

    mode: str
    correct: Interval
    against_full: Interval
    won_back: Interval
    selected: float
    found: float
    ahead: int
    behind: int
    p: float


@dataclass(frozen=True, slots=True)
class Finding:
    """On one kind of question. ``of_attention``: of what ``query_attention`` wins back, the share that
    ``cacheclip`` does."""

    kind: str
    num_questions: int
    num_contexts: int
    rows: Sequence[ModeResult]
    of_attention: Interval | None


@dataclass(frozen=True, slots=True)
class Likeness:
    """With the attention of the primary's last layer, means over all questions: of the auxiliary's scores
    (``reading``), or of the primary's first layer, the yardstick: an auxiliary that is nearer is worth
    asking."""

    reading: str
    kl: float
    jaccard: float
    jaccard_by_chance: float
    num_questions: int


def findings(answers: Sequence[GradedAnswer], modes: Sequence[str]) -> list[Finding]:
    """Of contexts that have been asked about in all modes."""
    return [
        _finding(kind, modes, by_mode)
        for kind in (SPREAD, SINGLE)
        if (by_mode := _complete([a for a in answers if a.spread == (kind == SPREAD)], modes))
    ]


def likenesses(answers: Sequence[GradedAnswer], ratio: float) -> list[Likeness]:
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for answer in answers:
        for reading, pair in answer.agreement.items():
            pairs[reading].append(pair)
    chance = ratio / (2 - ratio)  # of two independent choices
    return [
        Likeness(reading, fmean(kl for kl, _ in of_it), fmean(best for _, best in of_it), chance, len(of_it))
        for reading, of_it in pairs.items()
    ]


def scores(found: Sequence[Finding]) -> Iterator[Score]:
    """Those by which a verdict goes."""
    for finding in found:
        for row in finding.rows:
            yield Score(row.mode, row.correct.value * finding.num_questions, -row.against_full.low)


def measurements(found: Sequence[Finding], alike: Sequence[Likeness]) -> Iterator[Measurement]:
    for finding in found:
        full = next(row for row in finding.rows if row.mode == FULL).correct.value
        for row in finding.rows:
            name, num = f"{finding.kind}_{row.mode}", finding.num_questions
            ratio = row.correct.value / full if full else None
            yield Measurement(f"correct_{name}", row.correct.value, "fraction", full, ratio, n=num)
            yield Measurement(f"won_back_{name}", row.won_back.value, "fraction", n=num)
            yield Measurement(f"selected_{name}", row.selected, "fraction", n=num)
            yield Measurement(f"p_cacheclip_and_{name}", row.p, "probability", n=row.ahead + row.behind)
    yardstick = next((one.kl for one in alike if one.reading == FIRST_LAYER), None)
    for one in alike:
        ratio = yardstick / one.kl if yardstick is not None and one.kl else None
        yield Measurement(f"kl_{one.reading}", one.kl, "nats", yardstick, ratio, n=one.num_questions)
        yield Measurement(
            f"jaccard_{one.reading}", one.jaccard, "fraction", one.jaccard_by_chance, n=one.num_questions
        )


def _complete(answers: Sequence[GradedAnswer], modes: Sequence[str]) -> dict[str, list[GradedAnswer]]:
    """By mode, in the same order of questions."""
    by_mode: dict[str, dict[tuple[int, int], GradedAnswer]] = {mode: {} for mode in modes}
    for answer in answers:
        if answer.mode in by_mode:
            by_mode[answer.mode][answer.context, answer.question] = answer
    common = sorted(set.intersection(*(set(of_mode) for of_mode in by_mode.values())))
    return {mode: [of_mode[key] for key in common] for mode, of_mode in by_mode.items()} if common else {}


def _finding(kind: str, modes: Sequence[str], by_mode: Mapping[str, Sequence[GradedAnswer]]) -> Finding:
    clip = next(mode for mode in modes if mode.startswith(CACHECLIP))
    context_Q = np.array([answer.context for answer in by_mode[clip]])
    clusters = Clusters(context_Q)
    correct = {mode: np.array([answer.correct for answer in of_mode]) for mode, of_mode in by_mode.items()}
    attention = None
    if ATTENTION in correct:
        attention = clusters.interval(won_back, correct[clip], correct[REORDERED], correct[ATTENTION])
    rows = [_row(mode, by_mode[mode], correct, correct[clip], clusters) for mode in modes]
    return Finding(kind, len(context_Q), len(set(context_Q.tolist())), rows, attention)


def _row(
    mode: str,
    answers: Sequence[GradedAnswer],
    correct: Mapping[str, Bools],
    clip_Q: Bools,
    clusters: Clusters,
) -> ModeResult:
    ours_Q = correct[mode]
    ahead, behind = int((ours_Q & ~clip_Q).sum()), int((clip_Q & ~ours_Q).sum())
    return ModeResult(
        mode,
        clusters.interval(lambda ours: ours, ours_Q),
        clusters.interval(lambda ours, full: ours - full, ours_Q, correct[FULL]),
        clusters.interval(won_back, ours_Q, correct[REORDERED], correct[FULL]),
        fmean(answer.selected / answer.num_tokens for answer in answers),
        fmean([answer.found for answer in answers if answer.found is not None] or [0.0]),
        ahead,
        behind,
        mcnemar(ahead, behind),
    )
