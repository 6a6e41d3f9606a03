"""What the disagreement of two ways of answering catches."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from cluster.gate.ledger import GradedAnswer
from load_tests.guard.__main__ import main
from load_tests.guard.disagreement import by_mode, curve, guards


def answers(mode: str, *texts: str, kind: str = "spread") -> list[GradedAnswer]:
    """Right is who says "Orla"."""
    return [GradedAnswer(kind, mode, i, 0, "Orla" in text, text, 10, 0) for i, text in enumerate(texts)]


KEPT = [
    *answers("whole_blocks", "It is Orla", "It is Orla", "It is Orla", "nobody"),
    *answers("full", "It is Orla", "It is Orla", "It is Orla", "nobody"),
    *answers("reordered_0", "It is Orla", "It is Sam", "It is Ada", "It is Sam"),
    *answers("epic_20", "It is Orla", "It is Kim", "It is Ada", "It is Ada"),
]


def test_losses_are_caught_where_the_ways_differ_and_other_differences_are_false_alarms() -> None:
    found = {(one.served, one.second): one for one in guards(by_mode(KEPT))}
    assert set(found) == {("reordered_0", "epic_20"), ("epic_20", "reordered_0")}
    one = found["reordered_0", "epic_20"]
    assert (one.num_questions, one.num_losses) == (4, 2)
    assert one.differing == (0.5, 0.5)  # one of two losses; one of two others, where nobody knows
    assert (one.caught, one.alarms) == (0, 0)  # no threshold parts the two


def test_a_curve_goes_from_no_alarm_to_all_and_only_upwards() -> None:
    loss_Q, in_common_Q = np.array([True, True, False, False]), np.array([0.2, 0.6, 0.6, 1.0])
    assert curve(loss_Q, in_common_Q) == [(0.2, 0, 0), (0.6, 0.5, 0), (1.0, 1, 0.5), (1.01, 1, 1)]


def test_it_reads_what_the_quality_benchmark_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, report = tmp_path / "answers.jsonl", tmp_path / "report.json"
    lines = [{"seed": 0}, [dataclasses.asdict(answer) for answer in KEPT]]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    assert main(["--answers", str(path), "--json", str(report)]) == 0
    assert "0 of 2 pairs catch 60% of the losses at 15% false alarms" in capsys.readouterr().out
    names = {m["name"] for m in json.loads(report.read_text())["measurements"]}
    assert "caught_reordered_0_and_epic_20" in names
    assert main(["--answers", str(path), "--kinds", "single"]) == 2
    assert "holds no answers of whole_blocks" in capsys.readouterr().err
    path.write_text("x\ny\n", encoding="utf-8")
    assert main(["--answers", str(path)]) == 2
    assert "is no file of answers of load_tests.quality" in capsys.readouterr().err
