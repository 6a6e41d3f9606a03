"""Gathers the metrics of all processes of a machine, and shows them.

Every process listens on a Unix socket in a directory of the machine's, which nobody but the owner of the
services may enter, and tells its metrics to whoever connects. Asking all of them is one text: ``gather``. The
gateway's HTTP door shows it, and, if a port is set, one process of each machine does: the one that holds the
lock in that directory. When it ends, another takes over.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from shared.metrics.config import MetricsConfig
from shared.metrics.recorder import Metrics
from shared.metrics.table import METRICS_PROCESSES
from shared.private_files import make_private_directory, open_private

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATH = "/metrics"
ANSWER_S = 8.0
"""A process that takes longer is left out; Prometheus itself waits 10 s unless told otherwise."""
_SUFFIX = ".sock"
_RETRY_S = 5.0
_BACKLOG = 16


class Outlet:
    """Tells this process's metrics to whoever connects, until it is closed."""

    def __init__(self, directory: Path, name: str, text: Callable[[], str]) -> None:
        make_private_directory(directory)
        self._directory = directory
        self._name = f"{name}.{os.getpid()}{_SUFFIX}"
        self._text = text
        with _short(directory) as place:
            Path(place, self._name).unlink(missing_ok=True)
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.bind(f"{place}/{self._name}")
        self._socket.listen(_BACKLOG)
        threading.Thread(target=self._serve, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Nobody is told any more."""
        (self._directory / self._name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        """One after the other: who asks are few, and a second answer would cost as much as the first."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(ANSWER_S)
                try:
                    connection.sendall(self._text().encode())
                except OSError:
                    log.debug("who asked for metrics left")
                except Exception:
                    log.exception("the metrics cannot be told")


def gather(directory: Path) -> str:
    """The metrics of all processes that listen in ``directory``, in Prometheus's text format. Blocks, at most
    a little longer than ``ANSWER_S``."""
    names = sorted(path.name for path in directory.glob(f"*{_SUFFIX}"))
    if not names:
        return merged([_processes(0, 0)])
    with ThreadPoolExecutor(len(names), thread_name_prefix="metrics") as threads:
        told = list(threads.map(lambda name: _ask(directory, name), names))
    texts = [text for text in told if text]
    return merged([*texts, _processes(len(texts), told.count(""))])


def _ask(directory: Path, name: str) -> str | None:
    """Empty: no answer in time; None: the process has ended."""
    deadline_s = time.monotonic() + ANSWER_S
    pieces = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_S)
        try:
            with _short(directory) as place:
                connection.connect(f"{place}/{name}")
            while piece := connection.recv(1 << 16):
                pieces.append(piece)
                connection.settimeout(max(0.001, deadline_s - time.monotonic()))
        except (ConnectionRefusedError, FileNotFoundError):
            (directory / name).unlink(missing_ok=True)
            return None
        except OSError:
            return ""
    return b"".join(pieces).decode()


def _processes(num_answered: int, num_silent: int) -> str:
    own = Metrics()
    own.set(METRICS_PROCESSES, num_answered, state="answered")
    own.set(METRICS_PROCESSES, num_silent, state="silent")
    lines = own.text().splitlines(keepends=True)
    return "".join(line for line in lines if METRICS_PROCESSES.name in line)


def merged(texts: Iterable[str]) -> str:
    """One text: the series of a metric stand together, below one head."""
    heads: dict[str, list[str]] = {}
    series: dict[str, list[str]] = {}
    for text in texts:
        name = ""
        for line in text.splitlines(keepends=True):
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                known = name in heads
                heads.setdefault(name, [])
                series.setdefault(name, [])
            if not line.startswith("#"):
                series[name].append(line)
            elif not known:
                heads[name].append(line)
    return "".join("".join((*heads[name], *series[name])) for name in heads)


class NodeDoor:
    """Shows at ``config.port`` what ``directory`` tells, if this process is the machine's first to want that,
    or the first after that one ended. ``patience_s``: how long others may come first."""

    def __init__(self, directory: Path, config: MetricsConfig, patience_s: float = 0.0) -> None:
        make_private_directory(directory)
        self._directory, self._config, self._patience_s = directory, config, patience_s
        self._server: _MetricsServer | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="metrics-port", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        if self._server is not None:
            self._server.shutdown()

    def _run(self) -> None:
        if self._closed.wait(self._patience_s):
            return
        with open(self._directory / "door.lock", "w", opener=open_private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # waits for who has it
            while not self._closed.is_set():
                try:
                    self._server = _MetricsServer((self._config.host, self._config.port), self._directory)
                except OSError as error:
                    log.error(
                        "metrics cannot be shown at %s:%d: %s; set metrics.port to a free port, or 0",
                        self._config.host,
                        self._config.port,
                        error.strerror,
                    )
                    self._closed.wait(_RETRY_S)
                    continue
                with self._server:
                    self._server.serve_forever()
                return


class _MetricsServer(ThreadingHTTPServer):
    allow_reuse_port = False
    daemon_threads = True

    def __init__(self, address: tuple[str, int], directory: Path) -> None:
        self.directory = directory
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without a look at the machine's name, which may take long."""
        socketserver.TCPServer.server_bind(self)


class _Handler(BaseHTTPRequestHandler):
    server: _MetricsServer
    timeout = 10.0
    server_version, sys_version = "kvquilt", ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(404, explain=f"only {PATH} is here")
            return
        body = gather(self.server.directory).encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)


@contextlib.contextmanager
def _short(directory: Path) -> Iterator[str]:
    """A name of the directory that fits into a socket's address, which has 108 bytes."""
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)
