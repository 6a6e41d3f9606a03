"""Shows in the terminal what was found."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from load_tests.quality.findings import FULL, REORDERED, Finding, Likeness
from load_tests.quality.ledger import FIRST_LAYER
from load_tests.quality.paired import Interval


def show(console: Console, found: Sequence[Finding], alike: Sequence[Likeness]) -> None:
    for finding in found:
        console.print(_table(finding))
        if finding.of_attention is not None and _reuse_costs(finding):
            share = _percent(finding.of_attention)
            console.print(
                f"of what query_attention wins back over reordered, cacheclip wins back {share} %\n"
            )
    for one in alike:
        whose = (
            "the primary's first layer" if one.reading == FIRST_LAYER else f"the auxiliary ({one.reading})"
        )
        console.print(
            f"{whose} and the primary's last layer, {one.num_questions} questions: KL {one.kl:.2f} nats, "
            f"Jaccard of the best tokens {one.jaccard:.3f} (by chance {one.jaccard_by_chance:.3f})"
        )


def _table(finding: Finding) -> Table:
    where = "two chunks" if finding.kind == "spread" else "one chunk"
    title = f"Evidence in {where}: {finding.num_questions} questions about {finding.num_contexts} contexts"
    table = Table(title=title, title_justify="left")
    for heading in (
        "mode",
        "right",
        "minus full",
        "won back",
        "recomputed",
        "value found",
        "only it / only cacheclip",
        "p",
    ):
        table.add_column(heading, justify="left" if heading == "mode" else "right")
    for row in finding.rows:
        baseline = row.mode in (FULL, REORDERED)
        table.add_row(
            row.mode,
            _percent(row.correct),
            "" if row.mode == FULL else _percent(row.against_full, points=True),
            "" if baseline or not _reuse_costs(finding) else _percent(row.won_back),
            f"{row.selected:.1%}",
            f"{row.found:.0%}",
            f"{row.ahead} / {row.behind}",
            f"{row.p:.2g}",
        )
    return table


def _reuse_costs(finding: Finding) -> bool:
    """For certain; else a share of what it costs means nothing."""
    return next(row for row in finding.rows if row.mode == REORDERED).against_full.high < 0


def _percent(interval: Interval, points: bool = False) -> str:
    sign = "+" if points else ""
    return (
        f"{100 * interval.value:{sign}.1f} ({100 * interval.low:{sign}.1f} to "
        f"{100 * interval.high:{sign}.1f})"
    )
