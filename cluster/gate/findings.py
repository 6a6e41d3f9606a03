"""Finds what kept answers say: one table per kind of question, and the same numbers as
measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from cluster.gate.ledger import FIRST_LAYER, GradedAnswer
from cluster.gate.modes import CACHECLIP, CLOSED_BOOK, FULL, REORDERED, WHOLE_BLOCKS, Arm, Comparison
from cluster.gate.tasks import TaskKind
from shared.generation.modes import ReuseMode
from shared.measuring.paired import Bools, Clusters, Interval, mcnemar, won_back
from shared.measuring.report import Measurement
from shared.verdict import Tally

COUNTS_FROM = 0.2
UNJUDGED = "own_unjudged"


@dataclass(frozen=True, slots=True)
class ModeResult:
    """One way of answering one kind of question.

    mode: ``Arm.label``; ratio: of recomputed tokens, None where none are asked for.
    selected: share of the context's tokens that were recomputed; found: of the asked-for value's tokens, how
    many are among them.
    against_full, against_whole, against_reordered: differences of the shares of right answers to those of
    ``full`` over the same chunks, ``full`` over the whole blocks, and ``reordered``; won_back: of what
    ``full`` gets right beyond ``reordered``.
    p: of the paired test with ``reference``; ahead, behind: questions that only this one, or only the
    reference, answers.
    kl: mean divergence of the first tokens' distributions from those of ``full`` over the whole blocks, in
    nats; None:
    it was not measured.
    """

    mode: str
    ratio: float | None
    correct: Interval
    against_full: Interval
    against_whole: Interval
    against_reordered: Interval
    won_back: Interval
    selected: float
    found: float
    reference: str
    ahead: int
    behind: int
    p: float
    kl: Interval | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """On one kind of question. ``of_attention``: of what ``query_attention`` wins back, the share that
    ``cacheclip`` does at the same ratio. ``counts``: the model reads such contexts at all."""

    kind: str
    num_questions: int
    num_contexts: int
    num_tokens: float
    rows: Sequence[ModeResult]
    of_attention: Interval | None
    counts: bool

    def row(self, arm: Arm) -> ModeResult:
        return next(row for row in self.rows if row.mode == arm.label)


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


def findings(answers: Sequence[GradedAnswer], plan: Comparison) -> list[Finding]:
    """Of questions that have been asked in every way that the plan has for their kind."""
    by_kind: dict[str, list[GradedAnswer]] = defaultdict(list)
    for answer in answers:
        by_kind[answer.kind].append(answer)
    invented = [f"{kind}{many}" for many in ("", "_many") for kind in TaskKind]
    kinds = {
        kind: plan.arms(kind.removesuffix("_many"))
        for kind in (*invented, *sorted(set(by_kind) - {*invented}))
    }
    return [
        _finding(kind, plan, arms, by_mode)
        for kind, arms in kinds.items()
        if (by_mode := complete(by_kind[kind], [arm.label for arm in arms]))
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


def evidence(found: Sequence[Finding]) -> dict[str, Tally]:
    """Returns what a verdict was made of, by kind of question."""
    return {
        finding.kind: Tally(
            finding.num_questions,
            finding.num_contexts,
            {row.mode: (row.correct.value, row.correct.low, row.correct.high) for row in finding.rows},
            {row.mode: round(row.kl.value, 6) for row in finding.rows if row.kl is not None},
        )
        for finding in found
    }


def measurements(found: Sequence[Finding], alike: Sequence[Likeness]) -> Iterator[Measurement]:
    for finding in found:
        full = finding.row(FULL).correct.value
        for row in finding.rows:
            name, num = f"{finding.kind}_{row.mode}", finding.num_questions
            ratio = row.correct.value / full if full else None
            yield Measurement(name, row.correct.value, "fraction", full, ratio, n=num)
            yield Measurement(f"against_whole_blocks_{name}", row.against_whole.value, "fraction", n=num)
            yield Measurement(f"won_back_{name}", row.won_back.value, "fraction", n=num)
            yield Measurement(f"selected_{name}", row.selected, "fraction", n=num)
            if row.kl is not None:
                yield Measurement(f"kl_to_whole_blocks_{name}", row.kl.value, "nats", n=num)
            yield Measurement(f"p_{name}", row.p, "probability", n=row.ahead + row.behind)
    yardstick = next((one.kl for one in alike if one.reading == FIRST_LAYER), None)
    for one in alike:
        ratio = yardstick / one.kl if yardstick is not None and one.kl else None
        yield Measurement(f"kl_{one.reading}", one.kl, "nats", yardstick, ratio, n=one.num_questions)
        yield Measurement(
            f"jaccard_{one.reading}", one.jaccard, "fraction", one.jaccard_by_chance, n=one.num_questions
        )


def counts(kind: str, by_mode: Mapping[str, Sequence[GradedAnswer]]) -> bool:
    """Whether the model reads such contexts at all: the whole blocks tell it more than it knows without. Of
    questions without an answer: it says so, where it has read the whole blocks."""
    if kind == UNJUDGED:
        return False
    known, read = (
        fmean(answer.correct for answer in by_mode[arm.label]) for arm in (CLOSED_BOOK, WHOLE_BLOCKS)
    )
    return read >= COUNTS_FROM if "unanswerable" in kind else read - known >= COUNTS_FROM


def complete(answers: Iterable[GradedAnswer], modes: Sequence[str]) -> dict[str, list[GradedAnswer]]:
    """By mode, in the same order of questions; those that were asked in all of ``modes``."""
    by_mode: dict[str, dict[tuple[int, int], GradedAnswer]] = {mode: {} for mode in modes}
    for answer in answers:
        if answer.mode in by_mode:
            by_mode[answer.mode][answer.context, answer.question] = answer
    common = sorted(set.intersection(*(set(of_mode) for of_mode in by_mode.values())))
    return {mode: [of_mode[key] for key in common] for mode, of_mode in by_mode.items()} if common else {}


def _finding(
    kind: str, plan: Comparison, arms: Sequence[Arm], by_mode: Mapping[str, Sequence[GradedAnswer]]
) -> Finding:
    asked = by_mode[FULL.label]
    context_Q = np.array([answer.context for answer in asked])
    clusters = Clusters(context_Q)
    correct = {mode: np.array([answer.correct for answer in of_mode]) for mode, of_mode in by_mode.items()}
    clip, attention = plan.reference(FULL).label, Arm(ReuseMode.QUERY_ATTENTION, plan.ratio).label
    of_attention = None
    if attention in correct and clip.startswith(CACHECLIP):
        of_attention = clusters.interval(
            won_back, correct[clip], correct[REORDERED.label], correct[attention]
        )
    rows = [_row(arm, plan.reference(arm).label, by_mode[arm.label], correct, clusters) for arm in arms]
    num_tokens = fmean(answer.num_tokens for answer in asked)
    num_contexts = len(set(context_Q.tolist()))
    return Finding(kind, len(context_Q), num_contexts, num_tokens, rows, of_attention, counts(kind, by_mode))


def _row(
    arm: Arm,
    reference: str,
    answers: Sequence[GradedAnswer],
    correct: Mapping[str, Bools],
    clusters: Clusters,
) -> ModeResult:
    ours_Q, reference_Q = correct[arm.label], correct[reference]
    ahead, behind = int((ours_Q & ~reference_Q).sum()), int((reference_Q & ~ours_Q).sum())
    full_Q, whole_Q, reordered_Q = (correct[one.label] for one in (FULL, WHOLE_BLOCKS, REORDERED))
    return ModeResult(
        arm.label,
        arm.ratio,
        clusters.interval(lambda ours: ours, ours_Q),
        clusters.interval(np.subtract, ours_Q, full_Q),
        clusters.interval(np.subtract, ours_Q, whole_Q),
        clusters.interval(np.subtract, ours_Q, reordered_Q),
        clusters.interval(won_back, ours_Q, reordered_Q, full_Q),
        fmean(answer.selected / answer.num_tokens for answer in answers),
        fmean([answer.found for answer in answers if answer.found is not None] or [0.0]),
        reference,
        ahead,
        behind,
        mcnemar(ahead, behind),
        clusters.interval(lambda kl: kl, np.array([a.kl for a in answers], dtype=np.float64))
        if all(answer.kl is not None for answer in answers)
        else None,
    )
