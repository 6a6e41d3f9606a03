"""A proxy in front of a real S3 server that spoils what passes: the network and the SDK are in the test,
unlike with wrappers."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

_PIECE = 64 << 10  # bytes that pass a link at once
_OF_THE_CONNECTION = ("transfer-encoding", "content-length", "connection")


@dataclass(frozen=True, slots=True)
class Request:
    """``number`` counts from 0; ``path`` with its query; names of ``headers`` in lower case."""

    number: int
    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class S3Answer:
    """``headers``: those that say something of ``body``, but for its length, which is told as it is (of
    HEAD: as the server told it)."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class S3Fault:
    """
    delay_s: before the request is passed on.
    altered: what is answered in place of the server's answer, in good order as far as HTTP is concerned.
    status, code: answered instead of passing it on (S3's error of that code).
    keep_bytes: of the answer's body; then the connection ends.
    reset: the connection is reset instead of passing the request on; with ``keep_bytes``, after these.
    lost_answer: the request is passed on, and the connection is reset instead of answering.
    """

    delay_s: float = 0.0
    altered: Callable[[S3Answer], S3Answer] | None = None
    status: int = 0
    code: str = ""
    keep_bytes: int | None = None
    reset: bool = False
    lost_answer: bool = False


Plan = Callable[[Request], S3Fault | None]


def of_the_body(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Returns the headers that ``S3Answer`` has."""
    return tuple((name, value) for name, value in headers if name.lower() not in _OF_THE_CONNECTION)


class FaultyS3:
    """Listens at ``endpoint`` and passes on to ``upstream`` (host:port) what ``plan`` does not spoil. Set
    ``plan`` at any time. ``bytes_per_s``: of all bodies of answers together, as of a network's link; 0: as
    fast as they come."""

    def __init__(self, upstream: str, plan: Plan | None = None, bytes_per_s: float = 0.0) -> None:
        self.upstream = upstream
        self.link = NetworkLink(bytes_per_s) if bytes_per_s else None
        self.plan: Plan = plan or (lambda request: None)
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        self._server = _ProxyServer(("127.0.0.1", 0), type("Handler", (_ProxyHandler,), {"proxy": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def fault_of(self, method: str, path: str, headers: Mapping[str, str]) -> S3Fault | None:
        with self._lock:
            request = Request(len(self.requests), method, path, headers)
            self.requests.append(request)
        return self.plan(request)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class NetworkLink:
    """Bytes of many senders pass one behind the other, a piece of each in turn."""

    def __init__(self, bytes_per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_s, self._clock = bytes_per_s, clock
        self._lock, self._free_at = threading.Lock(), 0.0

    def wait_s(self, num_bytes: int) -> float:
        """For how long the sender of so many bytes, which come next, has to wait until they have passed."""
        with self._lock:
            now = self._clock()
            self._free_at = max(now, self._free_at) + num_bytes / self._bytes_per_s
            return self._free_at - now


class _ProxyServer(ThreadingHTTPServer):
    daemon_threads = True  # of connections that clients keep open

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients that go away


class _ProxyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyS3

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._upstream = http.client.HTTPConnection(self.proxy.upstream)

    def finish(self) -> None:
        self._upstream.close()
        super().finish()

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.proxy.fault_of(self.command, self.path, self._headers()) or S3Fault()
        time.sleep(fault.delay_s)
        if fault.status:
            self._refuse(fault)
        elif fault.reset and fault.keep_bytes is None:
            self._reset()
        else:
            self._pass_on(body, fault)

    def _headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items()}

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _pass_on(self, body: bytes, fault: S3Fault) -> None:
        self._upstream.request(self.command, self.path, body, dict(self.headers.items()))
        response = self._upstream.getresponse()
        answer = S3Answer(response.status, of_the_body(response.getheaders()), response.read())
        if fault.lost_answer:
            self._reset()
            return
        if fault.altered is not None:
            answer = fault.altered(answer)
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        length = response.getheader("Content-Length") if self.command == "HEAD" else str(len(answer.body))
        if length is not None and answer.status != 204:
            self.send_header("Content-Length", length)
        self.end_headers()
        self._send(answer.body[: fault.keep_bytes])
        if fault.keep_bytes is not None and fault.keep_bytes < len(answer.body):
            self._reset() if fault.reset else self._end()

    def _send(self, body: bytes) -> None:
        if self.proxy.link is None:
            self.wfile.write(body)
            return
        for first in range(0, len(body), _PIECE):
            piece = body[first : first + _PIECE]
            time.sleep(self.proxy.link.wait_s(len(piece)))
            self.wfile.write(piece)

    def _refuse(self, fault: S3Fault) -> None:
        content = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>injected</Message></Error>".encode()  # noqa: E501
        self.send_response_only(fault.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("x-minio-error-code", fault.code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _end(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        pass
