"""The embedded Milvus as a program of its own: what it keeps, how it ends, and what it says when it cannot
serve."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pymilvus import MilvusClient

from cluster.paths import PROJECT_ROOT

COMMAND = [sys.executable, "-m", "services.retrieval.milvus_server"]


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """Its address; asked to end at the end, and does."""
    server = subprocess.Popen(
        [*COMMAND, str(directory), "127.0.0.1", "0"], stdout=subprocess.PIPE, text=True, cwd=PROJECT_ROOT
    )
    try:
        assert server.stdout is not None
        told = server.stdout.readline()
        assert told.startswith("Milvus at "), told
        yield told.removeprefix("Milvus at ").strip()
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()


def test_what_it_was_given_is_there_when_it_serves_again(tmp_path: Path) -> None:
    for has_it in (False, True):
        with serving(tmp_path) as address, closing(MilvusClient(uri=f"http://{address}")) as client:
            assert client.has_collection("towns") is has_it
            if not has_it:
                client.create_collection("towns", dimension=4)
                client.insert("towns", [{"id": 1, "vector": [1.0, 0.0, 0.0, 0.0]}])
            client.load_collection("towns")
            (found,) = client.query("towns", ids=[1], output_fields=["id"])
            assert found["id"] == 1


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, str(tmp_path), "127.0.0.1", str(port)],
            cwd=PROJECT_ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert f"cannot listen at 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr
