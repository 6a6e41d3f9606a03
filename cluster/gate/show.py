"""Shows in the terminal what was found."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from cluster.gate.decision import GateDecision, GateOutcome
from cluster.gate.findings import COUNTS_FROM, Finding, Likeness
from cluster.gate.ledger import FIRST_LAYER
from cluster.gate.modes import CLOSED_BOOK, FULL, REORDERED, WHOLE_BLOCKS
from shared.measuring.paired import Interval

_ABOUT = {
    "spread": "Evidence in two chunks, shuffled",
    "document_order": "Evidence in two chunks, in document order",
    "partial": "Evidence in two chunks, others missing",
    "unnamed": "The chunk that names the thing is missing",
    "in_front": "No title, and the chunk that names the thing is missing",
    "cross_document": "Evidence in two documents",
    "single": "Evidence in one chunk",
    "unanswerable": "What was retrieved does not tell",
    "own": "Questions with answers or evidence",
    "own_unanswerable": "Questions that the documents do not answer",
    "own_unjudged": "Questions that carry neither answer nor evidence",
}
_OUTCOMES = {
    GateOutcome.ACCEPTED: "good enough",
    GateOutcome.WORSE: "worse",
    GateOutcome.OPEN: "open: more questions would tell",
}


def show(console: Console, found: Sequence[Finding], alike: Sequence[Likeness]) -> None:
    for finding in found:
        console.print(_table(finding))
        if finding.of_attention is not None and _reuse_costs(finding):
            share = _percent(finding.of_attention)
            console.print(f"of what query_attention wins back over reordered, cacheclip wins back {share} %")
        if not finding.counts:
            console.print(
                f"{finding.kind} does not count: the whole blocks beat closed book by less than "
                f"{100 * COUNTS_FROM:.0f} points",
                style="yellow",
            )
        console.print()
    for one in alike:
        whose = (
            "the primary's first layer" if one.reading == FIRST_LAYER else f"the auxiliary ({one.reading})"
        )
        console.print(
            f"{whose} and the primary's last layer, {one.num_questions} questions: KL {one.kl:.2f} nats, "
            f"Jaccard of the best tokens {one.jaccard:.3f} (by chance {one.jaccard_by_chance:.3f})"
        )


def summary_table(found: Sequence[Finding]) -> Table:
    """A row for each kind of question; of the modes that recompute the best."""
    table = Table("evidence", box=None, pad_edge=False, header_style="dim")
    for name in ("questions", "closed book", "whole blocks", "full", "reordered", "best that recomputes"):
        table.add_column(name, justify="right")
    for finding in found:
        marks = [finding.row(arm).correct for arm in (CLOSED_BOOK, WHOLE_BLOCKS, FULL, REORDERED)]
        recomputing = [row for row in finding.rows if row.ratio]
        best = max(recomputing, key=lambda row: row.correct.value, default=None)
        table.add_row(
            finding.kind if finding.counts else f"{finding.kind} (not read)",
            str(finding.num_questions),
            *(f"{mark.value:.0%} ±{(mark.high - mark.low) / 2:.0%}" for mark in marks),
            "" if best is None else f"{best.correct.value:.0%} {best.mode}",
        )
    return table


def decision_table(decision: GateDecision) -> Table:
    """A row for each way that was judged and each group of questions."""
    table = Table("mode", "questions", box=None, pad_edge=False, header_style="dim")
    for name in ("contexts", "minus whole blocks", "worse by at most", ""):
        table.add_column(name, justify="right" if name else "left")
    for one in decision.judged:
        table.add_row(
            one.mode,
            one.group.replace("_", " "),
            str(one.num_contexts),
            f"{100 * one.difference:+.1f}",
            f"{100 * one.loss_at_most:.1f}",
            _OUTCOMES[one.outcome],
        )
    return table


def kl_table(found: Sequence[Finding]) -> Table:
    """Shows how far the first tokens' distributions are from the reference's, in nats: a row for each way, a
    column for each kind of question."""
    table = Table("KL to whole blocks", box=None, pad_edge=False, header_style="dim")
    for finding in found:
        table.add_column(f"{finding.kind} ({finding.num_questions})", justify="right")
    divergences = [
        {row.mode: f"{row.kl.value:.3f}" for row in finding.rows if row.kl is not None} for finding in found
    ]
    for mode in dict.fromkeys(mode for of_kind in divergences for mode in of_kind):
        if mode != WHOLE_BLOCKS.label:
            table.add_row(mode, *(of_kind.get(mode, "") for of_kind in divergences))
    return table


def _table(finding: Finding) -> Table:
    kind, many, _ = finding.kind.partition("_many")
    title = (
        f"{finding.kind}: {_ABOUT[kind]}{', many documents' * bool(many)}: {finding.num_questions} questions "
        f"about {finding.num_contexts} contexts of {finding.num_tokens:.0f} tokens"
    )
    table = Table(title=title, title_justify="left")
    headings = (
        "mode",
        "right",
        "minus full",
        "minus whole blocks",
        "won back",
        "recomputed",
        "value found",
        "KL",
        "only it / only other",
        "p",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "mode" else "right")
    for row in finding.rows:
        table.add_row(
            row.mode,
            _percent(row.correct),
            "" if row.mode == FULL.label else _percent(row.against_full, points=True),
            "" if row.mode == WHOLE_BLOCKS.label else _percent(row.against_whole, points=True),
            _percent(row.won_back) if row.ratio and _reuse_costs(finding) else "",
            f"{row.selected:.1%}" if row.ratio is not None or row.mode == FULL.label else "",
            f"{row.found:.0%}" if row.ratio is not None or row.mode == FULL.label else "",
            "" if row.kl is None or row.mode == WHOLE_BLOCKS.label else f"{row.kl.value:.3f}",
            "" if row.mode == row.reference else f"{row.ahead} / {row.behind} {row.reference}",
            "" if row.mode == row.reference else f"{row.p:.2g}",
        )
    return table


def _reuse_costs(finding: Finding) -> bool:
    """For certain; else a share of what it costs means nothing."""
    return finding.row(REORDERED).against_full.high < 0


def _percent(interval: Interval, points: bool = False) -> str:
    sign = "+" if points else ""
    return (
        f"{100 * interval.value:{sign}.1f} ({100 * interval.low:{sign}.1f} to "
        f"{100 * interval.high:{sign}.1f})"
    )
