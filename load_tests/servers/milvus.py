"""Runs a Milvus server of one's own, for tests and benchmarks: the embedded Milvus of ``milvus-lite`` behind
Milvus's gRPC protocol, in a process that is gone with its starter."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import grpc

from cluster.local.launcher import free_port
from load_tests.servers.guarded import GuardedServer

_ANSWER_S = 2.0


class MilvusServer(GuardedServer):
    """Runs from construction to ``close``; between ``stop`` and ``start`` it is down, between ``hang`` and
    ``go_on`` it takes connections and answers nothing. It comes back with port and data."""

    def __init__(self, data: Path) -> None:
        data.mkdir(parents=True, exist_ok=True)
        super().__init__("Milvus", data.with_name(data.name + ".log"))
        self._data, self._port = data, free_port()
        self.start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def hang(self) -> None:
        os.killpg(self._session, signal.SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self._session, signal.SIGCONT)

    def _command(self) -> list[str]:
        serve = [sys.executable, "-m", "services.retrieval.milvus_server"]
        return [*serve, str(self._data), "127.0.0.1", str(self._port)]

    def _answers(self) -> bool:
        with grpc.insecure_channel(f"127.0.0.1:{self._port}") as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=_ANSWER_S)
            except grpc.FutureTimeoutError:
                return False
        return True
