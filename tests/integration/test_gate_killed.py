"""A gate that is killed goes on where it was, and comes to the verdict that it would have come to."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from cluster.paths import DEMO_MODEL
from shared.verdict import VERDICT_FILE
from shared.verdicts import read_verdicts

PATIENCE_S = 300.0
COMMAND = (
    "--questions", "60", "--ratios", "", "--processes", "1", "--tolerance", "0.9", "--alpha", "0.5",
)  # fmt: skip


def gate(model: Path, data: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "cluster.cli.main",
        "--data-dir",
        str(data),
        "gate",
        "--model",
        str(model),
    ]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *COMMAND], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ
    )


def test_a_gate_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(DEMO_MODEL, model)
    (model / VERDICT_FILE).unlink(missing_ok=True)
    data = tmp_path / "data"
    killed = gate(model, data)
    give_up = time.monotonic() + PATIENCE_S
    while not (lines := answered(data)) and time.monotonic() < give_up:
        assert killed.poll() is None, killed.stdout.read() if killed.stdout else ""
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    lines = answered(data)
    assert lines
    assert not (model / VERDICT_FILE).exists()

    gone_on = gate(model, data)
    output, _ = gone_on.communicate(timeout=PATIENCE_S)
    assert gone_on.returncode == 0, output
    (verdict,) = read_verdicts(model / VERDICT_FILE)
    assert answered(data) == []  # there is a verdict

    anew = gate(model, tmp_path / "anew")
    output, _ = anew.communicate(timeout=PATIENCE_S)
    assert anew.returncode == 0, output
    (again,) = read_verdicts(model / VERDICT_FILE)
    assert replace(again, made_s=verdict.made_s) == verdict


def answered(data: Path) -> list[str]:
    """Whole lines of answers behind the first one, which is about the settings."""
    return [
        line
        for path in (data / "gate").glob("*.jsonl")
        for line in path.read_text(encoding="utf-8").split("\n")[1:-1]
    ]
