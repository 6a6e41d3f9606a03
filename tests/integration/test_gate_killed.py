"""A gate that is interrupted, or killed, goes on where it was, and comes to the verdicts that it would have
come to."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from cluster.paths import DEMO_MODEL
from shared.verdict import VERDICT_FILE, Verdict
from shared.verdicts import read_verdicts

PATIENCE_S = 300.0
COMMAND = (
    "--questions", "24", "--modes", "reordered", "--encoding", "exact,int8",
    "--processes", "2", "--tolerance", "0.9", "--alpha", "0.5",
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
        [*command, *COMMAND],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def test_a_gate_that_ends_early_goes_on_where_it_was(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(DEMO_MODEL, model)
    (model / VERDICT_FILE).unlink(missing_ok=True)
    data = tmp_path / "data"

    interrupted = gate(model, data)
    wait_for(interrupted, lambda: bool(answered(data)))
    os.killpg(interrupted.pid, signal.SIGINT)  # as Ctrl-C does, worker processes included
    output, _ = interrupted.communicate(timeout=PATIENCE_S)
    assert (interrupted.returncode, b"the same command goes on" in output) == (130, True), output
    lines = answered(data)
    assert lines

    killed = gate(model, data)
    wait_for(killed, lambda: len(list((data / "gate").glob("*.jsonl"))) == 2)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert set(lines) <= set(answered(data)), "the first encoding has its verdict, the second not yet"
    (of_first,) = verdicts_of(model)
    assert of_first.encoding == "exact"

    gone_on = gate(model, data)
    output, _ = gone_on.communicate(timeout=PATIENCE_S)
    assert gone_on.returncode == 0, output
    verdicts = verdicts_of(model)
    assert [verdict.encoding for verdict in verdicts] == ["int8", "exact"]
    assert verdicts[1] == of_first
    assert answered(data) == []  # there are verdicts

    anew = gate(model, tmp_path / "anew")
    output, _ = anew.communicate(timeout=PATIENCE_S)
    assert anew.returncode == 0, output
    assert verdicts_of(model) == verdicts


def verdicts_of(model: Path) -> list[Verdict]:
    """But for when they were made."""
    return [replace(verdict, made_s=0.0) for verdict in read_verdicts(model / VERDICT_FILE)]


def wait_for(running: subprocess.Popen[bytes], happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not happened() and time.monotonic() < give_up:
        assert running.poll() is None, running.stdout.read() if running.stdout else ""
        time.sleep(0.05)


def answered(data: Path) -> list[str]:
    """Whole lines of answers behind the first one, which is about the settings."""
    return [
        line
        for path in (data / "gate").glob("*.jsonl")
        for line in path.read_text(encoding="utf-8").split("\n")[1:-1]
    ]
