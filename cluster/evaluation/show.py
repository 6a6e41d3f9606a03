"""Makes the tables and lines that show what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from cluster.evaluation.arms import FULL
from cluster.evaluation.findings import COUNTS_FROM, Average, EvalRow, TaskFinding
from shared.measuring.paired import Interval


def shown(found: Sequence[TaskFinding], averages: Sequence[Average]) -> Iterator[Table | str]:
    """Lines and tables, in the order in which they are printed."""
    for finding in found:
        yield title(finding)
        yield task_table(finding)
        if not finding.counts:
            yield no_score(finding)
        yield ""
    if averages:
        yield "averages, each task counting alike"
        yield averages_table(averages)


def title(finding: TaskFinding) -> str:
    return (
        f"{finding.task}: {finding.metric}, {finding.num_cases} cases of {finding.num_tokens:.0f} tokens "
        "in documents"
    )


def task_table(finding: TaskFinding) -> Table:
    """Columns of what no row has are left out."""
    columns = [column for column in _COLUMNS if any(column.cell(finding, row) for row in finding.rows)]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column.name, justify="left" if column.name == "mode" else "right")
    for row in finding.rows:
        table.add_row(*(column.cell(finding, row) for column in columns))
    return table


def averages_table(averages: Sequence[Average]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("mode")
    for one in averages:
        table.add_column(f"{one.name} ({one.counted} of {len(one.tasks)})", justify="right")
    for mode in averages[0].scores:
        table.add_row(mode, *(f"{100 * one.scores[mode]:.1f}" for one in averages))
    return table


def no_score(finding: TaskFinding) -> str:
    return (
        f"{finding.task}: only KL is reported, as full does not beat closed book by {100 * COUNTS_FROM:.0f} "
        "points: this model does not read these documents, so scores say nothing about reuse"
    )


@dataclass(frozen=True, slots=True)
class _Column:
    """``scored``: it means something only where scores do; ``compared``: with `full`."""

    name: str
    shown: Callable[[EvalRow], str]
    scored: bool = False
    compared: bool = False

    def cell(self, finding: TaskFinding, row: EvalRow) -> str:
        if (self.scored and not finding.counts) or (self.compared and row.mode == FULL.label):
            return ""
        return self.shown(row)


_COLUMNS = (
    _Column("mode", lambda row: row.mode),
    _Column("score", lambda row: percent(row.score), scored=True),
    _Column("minus full", lambda row: percent(row.against_full, points=True), scored=True, compared=True),
    _Column("of full's", lambda row: percent(row.of_full) if row.of_full else "", scored=True, compared=True),
    _Column("p", lambda row: f"{row.p:.2g}", scored=True, compared=True),
    _Column(
        "numbers cut short",
        lambda row: "" if row.cut_short is None else f"{row.cut_short:.1%}",
        scored=True,
    ),
    _Column("KL", lambda row: f"{row.kl.value:.2g} ({row.kl.low:.2g} to {row.kl.high:.2g})", compared=True),
    _Column("as full", lambda row: f"{row.same:.0%}", compared=True),
    _Column("computed", lambda row: f"{row.computed:.1%}"),
    _Column("of the value", lambda row: f"{row.found:.0%}" if row.computed and row.found is not None else ""),
    _Column("TFLOP", lambda row: f"{row.tflop:.3g}"),
    _Column("s", lambda row: f"{row.seconds:.3g}"),
)


def percent(interval: Interval, points: bool = False) -> str:
    sign = "+" if points else ""
    return (
        f"{100 * interval.value:{sign}.1f} ({100 * interval.low:{sign}.1f} to "
        f"{100 * interval.high:{sign}.1f})"
    )
