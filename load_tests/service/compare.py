"""Compares two runs. Only runs on one machine, with one load and one SLO, compare; what differs is said
first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from rich.console import Console
from rich.table import Table

from load_tests.service.outcome import Outcome
from load_tests.service.slo import METRICS
from load_tests.service.terminal import duration, numbers_table
from shared.measuring.report import times_better


@dataclass(frozen=True, slots=True)
class Change:
    """``better``: how many times better B is than A, above 1 is better; None where one of the two is missing
    or zero."""

    name: str
    before: str
    after: str
    better: float | None


def differences(before: Outcome, after: Outcome) -> list[str]:
    """Says what makes the comparison doubtful."""
    names = sorted(before.load.keys() | after.load.keys())
    found = [
        f"{name}: {before.load.get(name, 'nothing')} and {after.load.get(name, 'nothing')}"
        for name in names
        if before.load.get(name) != after.load.get(name)
    ]
    if before.level != after.level:
        found.append(f"level: {before.level} and {after.level}")
    if (before.slo, before.slo_fraction) != (after.slo, after.slo_fraction):
        found.append(
            f"SLO: {before.slo} for {before.slo_fraction:.0%} and {after.slo} for {after.slo_fraction:.0%}"
        )
    return found


def changes(before: Outcome, after: Outcome) -> list[Change]:
    """Every measurement that both runs have, then the times of every mode and rate that both have."""
    theirs = {m.name: m for m in before.measurements()}
    return [
        Change(
            ours.name,
            f"{other.value:.3g} {other.unit}",
            f"{ours.value:.3g} {ours.unit}",
            times_better(
                ours.value,
                other.value,
                "higher" if ours.name.startswith(("goodput", "selections")) else "lower",
            ),
        )
        for ours in after.measurements()
        if (other := theirs.get(ours.name)) is not None
    ] + list(_changes_by_rate(before, after))


def comparison_table(before: Outcome, after: Outcome) -> Table:
    table = numbers_table("", "A", "B", "B is better")
    for change in changes(before, after):
        better = "" if change.better is None else f"{change.better:.2f} ×"
        table.add_row(change.name, change.before, change.after, better)
    return table


def show_comparison(console: Console, before: Outcome, after: Outcome) -> None:
    for difference in differences(before, after):
        console.print(f"differs: {difference}", style="yellow", soft_wrap=True)
    console.print(comparison_table(before, after))


def _changes_by_rate(before: Outcome, after: Outcome) -> Iterator[Change]:
    rates = {(result.reuse, result.rate): result for result in before.rates}
    for mode in after.modes:
        for ours in after.of(mode):
            if (other := rates.get((mode, ours.rate))) is None:
                continue
            for metric, share in product(METRICS, (0.5, 0.9)):
                a, b = other.metric_ms(metric, share), ours.metric_ms(metric, share)
                name = f"{mode} at {ours.rate:.3g}/s, {metric} p{share * 100:.0f}"
                yield Change(name, duration(a), duration(b), times_better(b, a, "lower"))
