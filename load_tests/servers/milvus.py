"""Runs a Milvus server of one's own, for tests and benchmarks: the embedded Milvus of ``milvus-lite`` behind
Milvus's gRPC protocol, in a process that is gone with its starter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc

from cluster.local.launcher import free_port
from cluster.paths import PROJECT_ROOT
from load_tests.servers.s3 import GUARD

_START_TIMEOUT_S = 60.0
_SERVE = [sys.executable, "-m", "services.retrieval.milvus_server"]


class MilvusServer:
    """Runs from construction to ``close``; between ``stop`` and ``start`` it is down, between ``hang`` and
    ``go_on`` it takes connections and answers nothing. It comes back with port and data."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._data.mkdir(parents=True, exist_ok=True)
        self._port = free_port()
        self._guard: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Returns when it answers.

        Raises:
            RuntimeError: it did not.
        """
        log_path = self._data.with_name(self._data.name + ".log")
        with open(log_path, "ab") as log_file:
            self._guard = subprocess.Popen(
                ["sh", "-c", GUARD, "sh", *_SERVE, str(self._data), "127.0.0.1", str(self._port)],
                cwd=PROJECT_ROOT,
                stdin=subprocess.PIPE,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,
            )
        try:
            self._wait(log_path)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """At once, in the middle of whatever it does."""
        if self._guard is not None:
            self._guard.communicate()  # closes its end of the pipe
            self._guard = None

    close = stop

    def hang(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._guard is not None
        os.killpg(self._guard.pid, number)

    def _wait(self, log_path: Path) -> None:
        with grpc.insecure_channel(f"127.0.0.1:{self._port}") as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=_START_TIMEOUT_S)
            except grpc.FutureTimeoutError:
                raise RuntimeError(f"Milvus did not start:\n{log_path.read_text()[-2000:]}") from None
