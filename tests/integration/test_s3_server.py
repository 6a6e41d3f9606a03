"""The S3 server that the tests start: it ends with them, however they end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from load_tests.servers.s3 import S3Server

STARTER = """
import sys, time
from pathlib import Path
from load_tests.servers.s3 import S3Program, S3Server
server = S3Server(Path(sys.argv[1]) / "data", S3Program(sys.argv[2], Path(sys.argv[3]), "the same"))
print(server.endpoint, flush=True)
time.sleep(600)
"""


def test_it_ends_when_the_process_that_started_it_is_killed(s3_server: S3Server, tmp_path: Path) -> None:
    program = s3_server.program
    command = [sys.executable, "-c", STARTER, str(tmp_path), program.kind, str(program.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        host, port = starter.stdout.readline().strip().split(":")
        socket.create_connection((host, int(port)), timeout=5).close()
        starter.send_signal(signal.SIGKILL)
    deadline_s = time.monotonic() + 30
    while accepts(host, int(port)):
        assert time.monotonic() < deadline_s, "it still runs"
        time.sleep(0.05)


def accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
