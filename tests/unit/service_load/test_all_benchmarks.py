"""Running all benchmarks, with processes that only pretend to measure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from load_tests.all.__main__ import main
from load_tests.all.page import write_page
from load_tests.all.plan import BENCHMARKS, Benchmark
from load_tests.all.runs import read, report_file, run
from shared.measuring.report import Measurement, write_report

FAST = Benchmark("fast", "fast", "how fast it is", ("--size", "3"))
OTHER = Benchmark("other", "other", "how it fails")
FIRST_TOKEN = Measurement("first_token", 12.0, "ms", 480.0, 40.0, 9.0, 0.75, None, 11.0, 13.0, 5)


class Pretended:
    """Writes the report of a benchmark, unless it is one of ``failing``."""

    def __init__(self, failing: Sequence[str] = ()) -> None:
        self.failing = failing
        self.commands: list[list[str]] = []

    def __call__(self, command: Sequence[str], log: Path) -> int:
        self.commands.append(list(command))
        log.write_text("output")
        if command[2].removeprefix("load_tests.") in self.failing:
            return 3
        write_report(Path(command[-1]), [FIRST_TOKEN, Measurement("bytes", 7.0, "byte")])
        return 0


def test_every_benchmark_has_a_module_with_a_report() -> None:
    root = Path(__file__).parents[3] / "load_tests"
    for benchmark in BENCHMARKS:
        assert (root / benchmark.module / "__main__.py").is_file()
    assert len({benchmark.name for benchmark in BENCHMARKS}) == len(BENCHMARKS)


def test_what_has_a_report_is_not_measured_again_unless_asked(tmp_path: Path) -> None:
    pretended = Pretended()
    (first,) = run([FAST], tmp_path, start=pretended)
    assert first.seconds is not None
    assert pretended.commands[0][1:5] == ["-m", "load_tests.fast", "--size", "3"]
    (second,) = run([FAST], tmp_path, start=pretended)
    assert (second.seconds, second.error, len(pretended.commands)) == (None, "", 1)
    list(run([FAST], tmp_path, again=True, start=pretended))
    assert len(pretended.commands) == 2


def test_a_benchmark_that_fails_leaves_no_report_and_holds_no_other_up(tmp_path: Path) -> None:
    other, fast = run([OTHER, FAST], tmp_path, start=Pretended(failing=["other"]))
    assert (other.error, fast.error) == (f"exit code 3; {tmp_path}/reports/other.log has its output", "")
    assert not report_file(tmp_path, OTHER).exists()
    assert [report.benchmark for report in read(tmp_path, [OTHER, FAST])] == [FAST]


def test_one_that_ends_well_without_a_report_has_failed(tmp_path: Path) -> None:
    (outcome,) = run([FAST], tmp_path, start=lambda command, log: 0)
    assert "it wrote no report" in outcome.error


def test_one_that_is_broken_off_keeps_its_earlier_report(tmp_path: Path) -> None:
    list(run([FAST], tmp_path, start=Pretended()))

    def interrupted(command: Sequence[str], log: Path) -> int:
        Path(command[-1]).write_text("{")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run([FAST], tmp_path, again=True, start=interrupted))
    assert json.loads(report_file(tmp_path, FAST).read_text())["measurements"]


def test_the_page_has_figures_against_baseline_and_limit_with_command_machine_and_day(tmp_path: Path) -> None:
    list(run([FAST], tmp_path, start=Pretended()))
    page = write_page(tmp_path, read(tmp_path, [FAST, OTHER])).read_text()
    assert "How fast it is.\n\n`python -m load_tests.fast --size 3`" in page
    assert "| `first_token` | 12 | ms | 480 | 40 × | 75% | 11 | 13 | 5 |" in page
    assert "| `bytes` | 7 | byte |  |  |  |  |  |  |" in page
    assert " cores, " in page
    assert "](fast.svg)" in page
    assert "40.00 ×" in (tmp_path / "fast.svg").read_text()
    assert "other" not in page


def test_a_name_that_is_none_is_refused_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "auth,speed"])
    assert "'speed' is not one of engine, " in capsys.readouterr().err
    assert main(["--list"]) == 0
    assert "seals" in capsys.readouterr().out
