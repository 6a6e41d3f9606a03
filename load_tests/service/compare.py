"""Two runs side by side. Only runs on one machine, with one load and one SLO, compare; what differs is said
first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from load_tests.service.outcome import Outcome
from load_tests.service.terminal import duration


@dataclass(frozen=True, slots=True)
class Change:
    """``better``: how many times better B is than A, above 1 is better; None where one of the two is missing
    or zero."""

    name: str
    before: str
    after: str
    better: float | None


def differences(before: Outcome, after: Outcome) -> list[str]:
    """What makes the comparison doubtful, in words."""
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
    found = []
    for ours in after.measurements():
        if (other := theirs.get(ours.name)) is not None:
            higher = ours.name.startswith("goodput")
            better = _times_better(other.value, ours.value, higher)
            found.append(
                Change(ours.name, f"{other.value:.3g} {other.unit}", f"{ours.value:.3g} {ours.unit}", better)
            )
    return [*found, *_changes_by_rate(before, after)]


def show_comparison(console: Console, before: Outcome, after: Outcome) -> None:
    for difference in differences(before, after):
        console.print(f"differs: {difference}", style="yellow", soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    for name in ("A", "B", "B is better"):
        table.add_column(name, justify="right", no_wrap=True)
    for change in changes(before, after):
        table.add_row(
            change.name,
            change.before,
            change.after,
            "" if change.better is None else f"{change.better:.2f} ×",
        )
    console.print(table)


def _changes_by_rate(before: Outcome, after: Outcome) -> Iterator[Change]:
    for mode in after.modes:
        rates = {result.rate: result for result in before.of(mode)}
        for ours in after.of(mode):
            other = rates.get(ours.rate)
            for metric in ("ttft", "tpot", "total") if other else ():
                assert other is not None
                for share in (0.5, 0.9):
                    a, b = other.metric_ms(metric, share), ours.metric_ms(metric, share)
                    name = f"{mode} at {ours.rate:.3g}/s, {metric} p{share * 100:.0f}"
                    yield Change(name, duration(a), duration(b), _times_better(a, b, higher=False))


def _times_better(before: float, after: float, higher: bool) -> float | None:
    if before <= 0 or after <= 0:
        return None
    return after / before if higher else before / after
