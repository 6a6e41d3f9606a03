"""Writes the page: a table and a plot of every benchmark, with its command, machine and date."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from load_tests.all.runs import Report
from load_tests.plot import write_plot
from shared.measuring.report import Measurement

PAGE = "index.md"
_HEAD = """\
# Figures

Every benchmark of the project, as one command measured it:

    python -m load_tests.all --out {out}

Only figures of one table belong together: what is compared was measured in turn, in one run, with nothing
else running on the machine. Ratio: how many times better ours is than the baseline, above 1 is better. Limit:
how much of what arithmetic, memory or disk allow is reached.
"""


def write_page(out: Path, reports: Sequence[Report]) -> Path:
    """``out``: a directory; plots lie beside the page."""
    parts = [_HEAD.format(out=out)]
    for report in reports:
        name = report.benchmark.name
        parts.append("\n".join(_section(report)))
        if any(m.ratio for m in report.measurements):
            write_plot(out / f"{name}.svg", report.measurements, name)
            parts.append(f"![{name}: times better than the baseline]({name}.svg)\n")
    page = out / PAGE
    page.write_text("\n".join(parts), encoding="utf-8")
    return page


def _section(report: Report) -> Iterator[str]:
    machine = report.machine
    memory_gib = machine["memory_bytes"] / (1 << 30)
    day = time.strftime("%Y-%m-%d", time.gmtime(report.measured_s))
    amx = "with" if machine["amx"] else "without"
    yield f"## {report.benchmark.name}\n"
    yield f"{report.benchmark.about[0].upper()}{report.benchmark.about[1:]}.\n"
    yield f"`{report.command}`\n"
    cores = f"{machine['cores']} cores, {amx} AMX, {memory_gib:.0f} GiB"
    yield f"{machine['cpu']}, {cores}, Python {machine['python']}, {machine['system']}; {day}.\n"
    yield "| measurement | ours | unit | baseline | ratio | limit | min | max | n |"
    yield "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    yield from map(_row, report.measurements)
    yield ""


def _row(m: Measurement) -> str:
    limit = "" if m.fraction_of_limit is None else f"{m.fraction_of_limit:.0%}"
    cells = (f"`{m.name}`", _number(m.value), m.unit, _number(m.baseline), _number(m.ratio, " ×"), limit)
    return f"| {' | '.join((*cells, _number(m.min), _number(m.max), str(m.n or '')))} |"


def _number(value: float | None, unit: str = "") -> str:
    return "" if value is None else f"{value:.4g}{unit}"
