"""Decides, while answers still come in, which ways of reusing KV are worse than the reference, ``full``
over the whole blocks, by less than a margin: paired, question by question, and sequentially
(``shared.measuring.sequential``).

Questions about one context are not independent of each other, so a context is one comparison: the mean over
its questions. Kinds of questions that a model answers alike are one group; a way is accepted where it is so
in every group. Half of the error rate goes to ``reordered``, which computes least, the rest to the other
ways in equal parts: with the chance of 1 - alpha no way is accepted that is worse by the margin.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.gate.findings import Finding, complete, counts
from cluster.gate.ledger import GradedAnswer
from cluster.gate.modes import FULL, REORDERED, WHOLE_BLOCKS, Comparison
from cluster.gate.tasks import TaskKind
from shared.measuring.judge import Score
from shared.measuring.sequential import Floats, log_threshold, worse_at_most, worse_by_less, worse_by_more

DEFAULT_TOLERANCE, DEFAULT_ALPHA = 0.03, 0.05
WITHIN = "within_documents"
_ALONE = (TaskKind.CROSS_DOCUMENT, TaskKind.UNANSWERABLE)
Context = tuple[bool, int]
Bools = NDArray[np.bool_]


class GateOutcome(enum.StrEnum):
    """OPEN: the questions do not tell yet."""

    ACCEPTED = "accepted"
    WORSE = "worse"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Judged:
    """One way of answering (``Arm.label``) on one group of questions. ``difference``: of the shares of
    right answers, from the reference; ``loss_at_most``: how much worse it is at most, with certainty."""

    mode: str
    group: str
    num_contexts: int
    difference: float
    loss_at_most: float
    outcome: GateOutcome


@dataclass(frozen=True, slots=True)
class GateDecision:
    """``num_contexts``: that it took. ``decided``: nothing that is asked besides could change it, or the
    chance of that is part of ``alpha``."""

    tolerance: float
    alpha: float
    num_contexts: int
    decided: bool
    judged: tuple[Judged, ...] = ()

    def of(self, mode: str) -> list[Judged]:
        return [one for one in self.judged if one.mode == mode]

    def outcome(self, mode: str) -> GateOutcome:
        outcomes = [one.outcome for one in self.of(mode)]
        if GateOutcome.WORSE in outcomes:
            return GateOutcome.WORSE
        return (
            GateOutcome.ACCEPTED if outcomes and set(outcomes) == {GateOutcome.ACCEPTED} else GateOutcome.OPEN
        )


def group_of(kind: str) -> str:
    """Of the questions of a kind, those in contexts of many documents included."""
    of_few = kind.removesuffix("_many")
    if of_few in set(TaskKind):
        return of_few if of_few in _ALONE else WITHIN
    return kind


def shares_of(plan: Comparison, alpha: float) -> dict[str, float]:
    """The error rate of each way."""
    candidates = [arm.label for arm in plan.candidates]
    others = [label for label in candidates if label != REORDERED.label]
    first = alpha / 2 if others else alpha
    return {label: first if label == REORDERED.label else alpha / 2 / len(others) for label in candidates} | {
        FULL.label: alpha
    }


def decide(
    answers: Iterable[GradedAnswer],
    plan: Comparison,
    order: Sequence[Context],
    tolerance: float = DEFAULT_TOLERANCE,
    alpha: float = DEFAULT_ALPHA,
) -> GateDecision:
    """By the first of the contexts in ``order`` (of many documents or not, and number) that suffice;
    without any that suffice by all of them."""
    units = _units(answers, plan, order)
    shares = shares_of(plan, alpha)
    at = {
        label: {
            group: _Course.of(of_group[label], order, tolerance, share) for group, of_group in units.items()
        }
        for label, share in shares.items()
    }
    end = _end(at, len(order))
    num = len(order) if end is None else end + 1
    judged = tuple(
        course.judged(label, group, num, tolerance, shares[label])
        for label, by_group in at.items()
        for group, course in by_group.items()
    )
    return GateDecision(tolerance, alpha, num, end is not None, judged)


@dataclass(frozen=True, slots=True)
class _Course:
    """State of one way on one group after each context, T of them. ``places``: the contexts that say
    something."""

    places: Sequence[int]
    differences: Floats
    accepted_T: Bools
    worse_T: Bools

    @classmethod
    def of(
        cls, differences: Mapping[Context, float], order: Sequence[Context], tolerance: float, share: float
    ) -> _Course:
        places = [t for t, context in enumerate(order) if context in differences]
        values = np.array([differences[order[t]] for t in places], dtype=np.float64)
        known_T = np.searchsorted(places, np.arange(len(order)), side="right")
        threshold = log_threshold(share)
        accepted, worse = (
            np.concatenate([[False], wealth(values, tolerance) >= threshold])
            for wealth in (worse_by_less, worse_by_more)
        )
        return cls(places, values, accepted[known_T], worse[known_T])

    def judged(self, label: str, group: str, num: int, tolerance: float, share: float) -> Judged:
        known = self.differences[: sum(place < num for place in self.places)]
        outcome = GateOutcome.OPEN
        if num and self.accepted_T[num - 1]:
            outcome = GateOutcome.ACCEPTED
        elif num and self.worse_T[num - 1]:
            outcome = GateOutcome.WORSE
        mean = float(known.mean()) if len(known) else 0.0
        at_most = worse_at_most(known, share)
        if outcome is GateOutcome.ACCEPTED:
            at_most = min(at_most, tolerance)
        return Judged(label, group, len(known), mean, at_most, outcome)


def _end(at: Mapping[str, Mapping[str, _Course]], num: int) -> int | None:
    """The first context after which ``reordered`` is accepted, or it is worse and of every other way it is
    known what it is; then it is also known on which groups ``reordered`` is good enough all the same."""
    if not num or not any(at.values()):
        return None
    accepted = {label: np.all([c.accepted_T for c in of.values()], axis=0) for label, of in at.items()}
    worse = {label: np.any([c.worse_T for c in of.values()], axis=0) for label, of in at.items()}
    known = np.all([accepted[label] | worse[label] for label in at if label != FULL.label], axis=0)
    by_group = np.all([c.accepted_T | c.worse_T for c in at[REORDERED.label].values()], axis=0)
    ends = np.flatnonzero(accepted[REORDERED.label] | (worse[REORDERED.label] & known & by_group))
    return int(ends[0]) if len(ends) else None


def _units(
    answers: Iterable[GradedAnswer], plan: Comparison, order: Sequence[Context]
) -> dict[str, dict[str, dict[Context, float]]]:
    """By group, way and context: the mean difference from the reference over the context's questions, of
    kinds that count."""
    wanted = set(order)
    by_kind: dict[str, list[GradedAnswer]] = defaultdict(list)
    for answer in answers:
        if context_of(answer) in wanted:
            by_kind[answer.kind].append(answer)
    labels = [*(arm.label for arm in plan.candidates), FULL.label]
    of_group: dict[str, dict[str, dict[Context, list[int]]]] = {}
    for kind, of_kind in by_kind.items():
        by_mode = complete(of_kind, [arm.label for arm in plan.arms(kind)])
        if not by_mode or not counts(kind, by_mode):
            continue
        group = of_group.setdefault(group_of(kind), {label: defaultdict(list) for label in labels})
        for label in labels:
            for ours, reference in zip(by_mode[label], by_mode[WHOLE_BLOCKS.label], strict=True):
                group[label][context_of(ours)].append(int(ours.correct) - int(reference.correct))
    return {
        group: {
            label: {context: sum(of_it) / len(of_it) for context, of_it in by_context.items()}
            for label, by_context in by_label.items()
        }
        for group, by_label in of_group.items()
    }


def scores(found: Sequence[Finding], plan: Comparison, decision: GateDecision) -> Iterator[Score]:
    """Those by which a verdict goes: of ways that requests can ask for, on kinds that count."""
    served = {arm.label: arm for arm in (*plan.candidates, FULL)}
    judged = {(one.mode, one.group): one for one in decision.judged}
    for finding in found:
        for row in finding.rows:
            arm, one = served.get(row.mode), judged.get((row.mode, group_of(finding.kind)))
            if finding.counts and arm is not None and one is not None:
                yield Score(
                    arm.mode.value,
                    row.correct.value * finding.num_questions,
                    one.loss_at_most,
                    arm.ratio or None,
                    gain_at_least=row.against_reordered.low,
                    gain_at_most=row.against_reordered.high,
                    kind=finding.kind,
                    worse=one.outcome is GateOutcome.WORSE,
                )


def context_of(answer: GradedAnswer) -> Context:
    """That it is about."""
    return answer.kind.endswith("_many"), answer.context
