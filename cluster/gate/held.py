"""Tells whether a verdict holds on questions that it was not made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from rich.table import Table

from cluster.gate.decision import Context, context_of, group_of
from cluster.gate.evaluated import Evaluated, label_of
from cluster.gate.findings import complete
from cluster.gate.modes import CONTROLS, OTHERS, WHOLE_BLOCKS, Comparison
from cluster.gate.retrieved import RetrievedQuestions
from shared.measuring.paired import Clusters, Interval
from shared.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Held:
    """One group of questions. ``difference``: of the verdict's mode from the reference, paired; its interval
    (95 %) resamples contexts. ``margin``: what the verdict allowed; None: the verdict itself says that the
    mode may be worse here."""

    group: str
    num_questions: int
    num_contexts: int
    difference: Interval
    margin: float | None

    @property
    def holds(self) -> bool:
        """The mode is within the margin, as well as these questions can tell: the interval holds nothing that
        is worse."""
        return self.margin is None or self.difference.low >= -self.margin


def plan_for(verdict: Verdict, plan: Comparison) -> Comparison:
    """Of what ``plan`` compared the verdict's mode alone."""
    mode = verdict.mode
    return replace(
        plan,
        controls=(mode,) if mode in CONTROLS else (),
        clips=plan.clips[:1] if mode.deferred else (),
        ratios=() if verdict.ratio is None else (verdict.ratio,),
        others=(mode,) if mode in OTHERS else (),
    )


def unseen(retrieved: RetrievedQuestions, verdict: Verdict, num: int) -> RetrievedQuestions:
    """At most ``num`` of the questions behind those that the verdict took."""
    return replace(retrieved, subjects=retrieved.subjects[verdict.num_contexts :][:num])


def held(evaluated: Evaluated, verdict: Verdict) -> list[Held]:
    """By group, of the kinds of questions that the model reads."""
    by_group: dict[str, list[tuple[Context, bool, bool]]] = defaultdict(list)
    label = label_of(verdict, evaluated.plan)
    for kind in (finding.kind for finding in evaluated.found if finding.counts):
        of_kind = [answer for answer in evaluated.answers if answer.kind == kind]
        by_mode = complete(of_kind, [label, WHOLE_BLOCKS.label])
        for ours, reference in zip(by_mode[label], by_mode[WHOLE_BLOCKS.label], strict=True):
            by_group[group_of(kind)].append((context_of(ours), ours.correct, reference.correct))
    return list(_held(by_group, verdict))


def _held(by_group: dict[str, list[tuple[Context, bool, bool]]], verdict: Verdict) -> Iterator[Held]:
    for group, pairs in by_group.items():
        numbers = {context: number for number, context in enumerate(dict.fromkeys(c for c, *_ in pairs))}
        ours_Q, reference_Q = (np.array([pair[i] for pair in pairs]) for i in (1, 2))
        clusters = Clusters(np.array([numbers[context] for context, *_ in pairs]))
        margin = None if group in verdict.beyond else verdict.tolerance
        difference = clusters.interval(np.subtract, ours_Q, reference_Q)
        yield Held(group, len(pairs), len(numbers), difference, margin)


def held_table(found: list[Held]) -> Table:
    table = Table("questions that it did not take", box=None, pad_edge=False, header_style="dim")
    for name in ("n", "contexts", "minus whole blocks", ""):
        table.add_column(name, justify="right" if name else "left")
    for one in found:
        found_at = one.difference
        value, low, high = (100 * share for share in (found_at.value, found_at.low, found_at.high))
        told = "holds" if one.holds else f"not surely within {100 * (one.margin or 0):g} points"
        table.add_row(
            one.group.replace("_", " "),
            str(one.num_questions),
            str(one.num_contexts),
            f"{value:+.1f} ({low:+.1f} to {high:+.1f})",
            "as the verdict says, not within the margin" if one.margin is None else told,
        )
    return table
