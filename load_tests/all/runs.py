"""Runs benchmarks as processes of their own, each with its report and its log; what has a report is done."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load_tests.all.plan import Benchmark
from shared.measuring.report import Measurement

REPORTS = "reports"


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """``seconds`` None: it was measured by an earlier run. ``error``: why there is no report; empty: there
    is one."""

    benchmark: Benchmark
    seconds: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """``measured_s``: when it was written, seconds since 1970."""

    benchmark: Benchmark
    machine: dict[str, Any]
    command: str
    measurements: tuple[Measurement, ...]
    measured_s: float


Start = Callable[[Sequence[str], Path], int]
"""Runs a command, its output into a file; returns its exit code."""


def start(command: Sequence[str], log: Path) -> int:
    """Whatever ends this process ends the benchmark too."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise


def report_file(out: Path, benchmark: Benchmark) -> Path:
    return out / REPORTS / f"{benchmark.name}.json"


def run(
    benchmarks: Sequence[Benchmark], out: Path, again: bool = False, start: Start = start
) -> Iterator[BenchmarkRun]:
    """One after the other, each outcome as it comes. ``again``: those with a report, too."""
    (out / REPORTS).mkdir(parents=True, exist_ok=True)
    for benchmark in benchmarks:
        report = report_file(out, benchmark)
        if report.exists() and not again:
            yield BenchmarkRun(benchmark)
            continue
        made, log = report.with_suffix(".partial"), report.with_suffix(".log")
        command = [sys.executable, "-m", f"load_tests.{benchmark.module}", *benchmark.options]
        began = time.monotonic()
        code = start([*command, "--json", str(made)], log)
        error = "" if code == 0 else f"exit code {code}; {log} has its output"
        if not error and not made.exists():
            error = f"it wrote no report; {log} has its output"
        if not error:
            made.replace(report)
        with suppress(FileNotFoundError):
            made.unlink()
        yield BenchmarkRun(benchmark, time.monotonic() - began, error)


def read(out: Path, benchmarks: Sequence[Benchmark]) -> list[Report]:
    """The reports that are there."""
    found = []
    for benchmark in benchmarks:
        path = report_file(out, benchmark)
        if path.exists():
            told = json.loads(path.read_text(encoding="utf-8"))
            measurements = tuple(Measurement(**each) for each in told["measurements"])
            command = f"python -m load_tests.{' '.join((benchmark.module, *benchmark.options))}"
            found.append(Report(benchmark, told["machine"], command, measurements, path.stat().st_mtime))
    return found
