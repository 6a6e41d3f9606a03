"""The processes of a machine, told as one: real sockets, real processes."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.local.launcher import free_port
from cluster.paths import PROJECT_ROOT
from shared.metrics import node, table
from shared.metrics.config import MetricsConfig
from shared.metrics.node import NodeDoor, Outlet, gather
from shared.metrics.recorder import Metrics
from tests.e2e.stack import wait_for

OTHER_PROCESS = """
import sys, time
from pathlib import Path
from shared.metrics import table
from shared.metrics.config import MetricsConfig
from shared.metrics.node import NodeDoor, Outlet
from shared.metrics.recorder import Metrics

directory, port = Path(sys.argv[1]), int(sys.argv[2])
metrics = Metrics("generator", "other")
metrics.add(table.RPCS, method="Generate", code="OK")
outlet = Outlet(directory, "generator", metrics.text)
door = NodeDoor(directory, MetricsConfig(port=port))
print("there", flush=True)
time.sleep(600)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Its name is longer than a socket's address may be."""
    return tmp_path / ("long" * 25) / "metrics"


@pytest.fixture
def outlet(directory: Path) -> Iterator[Outlet]:
    metrics = Metrics("gateway", "this")
    metrics.add(table.RPCS, method="Answer", code="OK")
    outlet = Outlet(directory, "gateway", metrics.text)
    yield outlet
    outlet.close()


@pytest.fixture
def other(directory: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process, which shows the metrics, and the port."""
    port = free_port()
    command = [sys.executable, "-c", OTHER_PROCESS, str(directory), str(port)]
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(PROJECT_ROOT)}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    yield process, port
    process.kill()
    process.communicate()


def shown(port: int, path: str = "/metrics") -> str | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError:
        raise
    except OSError:  # nobody, or one who ends
        return None


def told(text: str, state: str) -> float:
    (line,) = [
        line for line in text.splitlines() if line.startswith(f'kvquilt_metrics_processes{{state="{state}"}}')
    ]
    return float(line.split()[-1])


def test_all_processes_are_told_and_one_that_ended_is_forgotten(
    directory: Path, outlet: Outlet, other: tuple[subprocess.Popen[str], int]
) -> None:
    text = gather(directory)
    assert 'kvquilt_rpcs_total{application="gateway",code="OK",method="Answer",replica="this"} 1.0' in text
    assert (
        'kvquilt_rpcs_total{application="generator",code="OK",method="Generate",replica="other"} 1.0' in text
    )
    assert told(text, "answered") == 2
    other[0].kill()
    other[0].wait()
    text = gather(directory)
    assert 'replica="other"' not in text
    assert (told(text, "answered"), told(text, "silent")) == (1, 0)
    assert len(list(directory.glob("*.sock"))) == 1


def test_a_process_that_does_not_answer_is_counted_and_the_rest_told(
    directory: Path, outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "ANSWER_S", 0.2)
    with socket.socket(socket.AF_UNIX) as silent, node._short(directory) as place:
        silent.bind(f"{place}/stuck.1.sock")
        silent.listen()
        text = gather(directory)
    assert (told(text, "answered"), told(text, "silent")) == (1, 1)
    assert 'replica="this"' in text


def test_nobody_but_the_owner_may_enter(directory: Path, outlet: Outlet) -> None:
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_when_the_one_that_shows_them_ends_another_takes_over(
    directory: Path, outlet: Outlet, other: tuple[subprocess.Popen[str], int]
) -> None:
    process, port = other
    wait_for(lambda: shown(port), "the metrics of the other process's port")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        shown(port, "/")
    door = NodeDoor(directory, MetricsConfig(port=port))
    try:
        process.kill()
        text = wait_for(lambda: shown(port), "metrics after the other process has ended")
        assert 'replica="this"' in text
    finally:
        door.close()


def test_a_port_that_is_taken_is_named_and_tried_again(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_RETRY_S", 0.05)
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    door = NodeDoor(directory, MetricsConfig(port=port))
    try:
        said = f"metrics cannot be shown at 127.0.0.1:{port}"
        wait_for(lambda: said in caplog.text or None, "what is wrong with the port")
        assert "set metrics.port to a free port" in caplog.text
        taken.close()
        assert wait_for(lambda: shown(port), "metrics at the port that is free now")
    finally:
        door.close()
