"""Writes every benchmark's report in one form: ``{"machine", "command", "measurements"}``; see
``docs/benchmarks.md``."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """
    value: ours (the median where it was measured ``n`` times, between ``min`` and ``max``), in ``unit``.
    baseline: what it is compared with, measured in the same run.
    ratio: how many times better ours is than the baseline; above 1 is better, whatever the unit.
    limit: the physical limit in the same unit; fraction_of_limit: how much of it is reached, 1 is the limit.
    fraction_of_ceiling: likewise for what this machine's kernels reach alone at these shapes.
    tflop: arithmetic of what was timed, in 10^12 floating-point operations.
    Fields that do not apply are None.
    """

    name: str
    value: float
    unit: str
    baseline: float | None = None
    ratio: float | None = None
    limit: float | None = None
    fraction_of_limit: float | None = None
    fraction_of_ceiling: float | None = None
    min: float | None = None
    max: float | None = None
    n: int | None = None
    tflop: float | None = None


def measured(
    name: str,
    values: Sequence[float],
    unit: str,
    *,
    better: Better = "lower",
    baseline: float | Sequence[float] | None = None,
    limit: float | None = None,
    ceiling: float | None = None,
    flops: float | None = None,
) -> Measurement:
    """The median of ``values`` in relation to the rest, of which a ``baseline`` that was measured several
    times counts by its median. ``flops``: operations done in it."""
    value = statistics.median(values)
    if isinstance(baseline, Sequence):
        baseline = statistics.median(baseline)

    return Measurement(
        name,
        value,
        unit,
        baseline,
        times_better(value, baseline, better),
        limit,
        times_better(value, limit, better),
        times_better(value, ceiling, better),
        min(values),
        max(values),
        len(values),
        None if flops is None else flops / 1e12,
    )


def times_better(value: float, other: float | None, better: Better) -> float | None:
    """Above 1 where ``value`` is better than ``other``; None where one of the two is missing or zero."""
    if other is None or value <= 0 or other <= 0:
        return None
    return other / value if better == "lower" else value / other


def machine() -> dict[str, Any]:
    """Describes what ratios of one run must not be compared across."""
    info = _cpu_info()
    flags = set(info.get("flags", "").split())
    return {
        "cpu": info.get("model name", platform.processor()),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "amx": "amx_bf16" in flags,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def write_report(
    path: Path, measurements: Sequence[Measurement], details: Any = None, **machine_facts: Any
) -> None:
    """See ``report_of``."""
    report = report_of(measurements, details, **machine_facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def report_of(
    measurements: Sequence[Measurement], details: Any = None, **machine_facts: Any
) -> dict[str, Any]:
    """
    details: what the measurements were made of, for a benchmark whose reports are plotted or compared.
    machine_facts: what the run itself found out about the machine, such as its peak rates.
    """
    report: dict[str, Any] = {
        "machine": machine() | machine_facts,
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "measurements": [dataclasses.asdict(m) for m in measurements],
    }
    if details is not None:
        report["details"] = details
    return report


def _cpu_info() -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}
