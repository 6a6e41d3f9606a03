"""A running local stack as tests see it: its address, its processes, its command line."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cluster.config import load_quilt
from cluster.local import launcher
from cluster.local.state import StackState
from cluster.models.names import DEMO
from cluster.paths import DEMO_ASSETS, PROJECT_ROOT
from load_tests.servers.stack_processes import AGENT, PROXY, StackProcesses

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Stack:
    data_dir: Path
    state: StackState

    @property
    def target(self) -> str:
        return self.state.target

    @property
    def processes(self) -> StackProcesses:
        return StackProcesses(self.state.pid)

    def cli(self, *args: str, timeout_s: float = 180.0, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return cli(self.data_dir, *args, timeout_s=timeout_s, stdin=stdin)

    def replica_pid(self, application: str) -> int:
        """The process that serves ``application`` now."""
        return self.processes.wait_for(application)

    def agent_pid(self) -> int:
        """The process of the store's agent."""
        return self.processes.wait_for(AGENT)

    def proxy_pid(self) -> int:
        """The process of Ray Serve that callers reach."""
        return self.processes.wait_for(PROXY)

    def kill_replica(self, application: str) -> None:
        os.kill(self.replica_pid(application), signal.SIGKILL)


def start(data_dir: Path, **values: object) -> Stack:
    """The same code path as ``kvquilt up --model demo``."""
    ports = {"grpc_port": launcher.free_port(), "http_port": launcher.free_port()}
    return Stack(
        data_dir,
        launcher.start(load_quilt({"model": DEMO, "data_dir": str(data_dir), **ports, **values}, {})),
    )


@contextlib.contextmanager
def with_towns(collection: str) -> Iterator[Stack]:
    """A stack of the tiny demo model with the towns in ``collection``, as long as the context is open."""
    with tempfile.TemporaryDirectory() as folder:
        running = start(Path(folder) / "data", ingestion={"chunk_tokens": 96})
        try:
            ingested = running.cli("ingest", str(DEMO_ASSETS / "documents" / "towns"), "-c", collection)
            assert ingested.returncode == 0, ingested.stdout + ingested.stderr
            yield running
        finally:
            launcher.stop(running.data_dir)


def cli(
    data_dir: Path, *args: str, timeout_s: float = 180.0, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """`kvquilt`, from a directory that has nothing to do with the project."""
    return subprocess.run(
        command(data_dir, *args),
        cwd=data_dir.parent,
        env=environment(),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def command(data_dir: Path, *args: str) -> list[str]:
    return [sys.executable, "-m", "cluster.cli.main", "--data-dir", str(data_dir), *args]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(PROJECT_ROOT), "COLUMNS": "200"}


def wait_for(
    probe: Callable[[], ResultT | None], what: str, timeout_s: float = 60.0, pause_s: float = 0.1
) -> ResultT:
    """``pause_s``: between probes; long for those that keep a processor busy."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if (found := probe()) is not None:
            return found
        time.sleep(pause_s)
    raise AssertionError(f"no {what} within {timeout_s:g} s")
