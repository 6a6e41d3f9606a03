"""Reads a chunk's file from the object store into the caller's buffers, verifying every byte on the way.

    at once ──▶ its end is asked for and verified, then all its layers are asked for: one request each
    layers  ──▶ received in the order in which they lie in the file, in which they are wanted

Reading another layer next costs a request. What fails is taken from elsewhere.
"""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from functools import cache
from http import HTTPStatus
from typing import Any, Protocol

import urllib3
import xxhash
from urllib3.connection import HTTPConnection

from shared.errors import CorruptData, KvquiltError, NotFound, Unavailable
from shared.kv_format.filling import pieces_of
from shared.kv_format.frame import Array, Frame, read_frame
from shared.kv_format.header import ChunkHeader
from shared.kv_format.layout import Layout
from shared.kv_format.reader import ChunkFile
from shared.kv_format.sealing import SealKeys
from shared.tls import trusting

_CONNECT_S, _READ_S = 3.0, 10.0
_CONTENT_RANGE = re.compile(r"bytes \d+-\d+/(\d+)")
_KEPT_CONNECTIONS = 16
_WINDOW = (socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
"""A window that grows by itself is small for most of a chunk."""


class Body(Protocol):
    """An answer. ``size``: of the whole file."""

    @property
    def size(self) -> int: ...

    def readinto(self, out: memoryview) -> int:
        """Fills ``out``; fewer bytes only at the end."""
        ...

    def close(self) -> None: ...


Get = Callable[[str], Body]
"""Requests a range of the file, in the words of HTTP. Raises ``KvquiltError``, or what connections raise."""
Submit = Callable[[Callable[[], Frame]], Future[Frame]]


class RemoteChunk:
    """A file that may be in the object store. One thread at a time may use it."""

    def __init__(
        self,
        name: str,
        get: Get,
        check: Callable[[ChunkHeader], None],
        instead: Callable[[], ChunkFile],
        submit: Submit,
        keys: SealKeys | None = None,
    ) -> None:
        """``name``: what errors call the chunk. ``check``: raises ``CorruptData`` where the header is
        another chunk's. ``instead``: another way to the same file, once this one has failed; raises
        ``KvquiltError`` if there is none. ``submit``: to threads that do not wait for this chunk's layers.
        ``keys``: see ``ChunkFile.open``."""
        self._keys = keys
        self._name, self._get, self._check, self._instead = name, get, check, instead
        self._file: ChunkFile | None = None  # what the other way led to
        self._known: Frame | None = None
        self._body: Body | None = None
        self._position = 0  # of the body's next byte in the file
        self._begun = submit(self._begin)

    @property
    def header(self) -> ChunkHeader:
        """Waits for it. Raises like ``read_layer``."""
        if self._known is not None:
            return self._known.header
        if self._file is None:
            try:
                return self._frame().header
            except KvquiltError as error:
                self._file = self._other_way(error)
        return self._file.header

    def when_begun(self, tell: Callable[[], None]) -> None:
        """Calls ``tell`` once, when the first layer is on its way or will not come like this; from whichever
        thread notices."""
        self._begun.add_done_callback(lambda _: tell())

    def read_layer(self, layer: int, *out: Array) -> None:
        """As ``ChunkFile.read_layer``.

        Raises:
            ValueError, CorruptData, Unavailable: as there. NotFound: there is no such file.
            NewerFormat: a later version wrote it.
        """
        if self._file is None:
            try:
                self._receive(layer, out)
                return
            except KvquiltError as error:
                self._end_body()
                self._file = self._other_way(error)
        self._file.read_layer(layer, *out)

    def close(self) -> None:
        """Ends what was begun, too."""
        if not self._begun.cancel():
            with suppress(KvquiltError):
                self._begun.result()
        self._end_body()
        if self._file is not None:
            self._file.close()

    def _begin(self) -> Frame:
        """Returns once the first layer is on its way."""
        with _speaking_of(self._name):
            frame = read_frame(self._end_of_file, name=self._name, keys=self._keys)
            self._check(frame.header)
            self._ask_for(frame.seal.layout, 0)
            self._known = frame
            return frame

    def _frame(self) -> Frame:
        try:
            return self._begun.result()
        except CancelledError:
            raise Unavailable(f"chunk {self._name}: the reader is shutting down") from None

    def _end_of_file(self, length: int) -> tuple[int, bytes]:
        body = self._get(f"bytes=-{length}")
        try:
            tail = bytearray(min(length, body.size))
            if body.readinto(memoryview(tail)) != len(tail):
                raise Unavailable(f"chunk {self._name}: the object store ended an answer early")
            return body.size, bytes(tail)
        finally:
            body.close()

    def _ask_for(self, layout: Layout, layer: int) -> None:
        """This layer and those behind it."""
        start = layout.head_len + layer * layout.layer_len
        self._body, self._position = self._get(f"bytes={start}-{layout.tail_offset - 1}"), start

    def _receive(self, layer: int, out: Sequence[Array]) -> None:
        frame = self._frame()
        layout, parts, checksum = frame.seal.layout, frame.parts_of_layer(out), xxhash.xxh3_64()
        with _speaking_of(self._name):
            if self._body is None or self._position != layout.head_len + layer * layout.layer_len:
                self._end_body()
                self._ask_for(layout, layer)
            assert self._body is not None
            for piece in pieces_of(parts):
                if self._body.readinto(piece) != piece.nbytes:
                    raise Unavailable(f"chunk {self._name}: the object store ended an answer early")
                self._position += piece.nbytes
                checksum.update(piece)
        if checksum.intdigest() != frame.seal.layer_checksums[layer]:
            raise CorruptData(f"chunk {self._name}: layer {layer} fails its checksum")
        if self._position == layout.tail_offset:
            self._end_body()

    def _other_way(self, error: KvquiltError) -> ChunkFile:
        """The same file: layers of two that were computed apart must not mix."""
        try:
            file = self._instead()
        except KvquiltError:
            raise error from None
        if self._known is not None and file.seal != self._known.seal:
            file.close()
            raise Unavailable(f"chunk {self._name}: it was replaced while it was read")
        return file

    def _end_body(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            with suppress(OSError, urllib3.exceptions.HTTPError):
                body.close()


def request(url: str, ca_file: str, byte_range: str) -> Body:
    """Requests a range of what is at ``url``; ``ca_file``: see ``trusting``.

    Raises:
        NotFound: there is nothing. Unavailable: the answer is another one.
        OSError, urllib3.exceptions.HTTPError: there is none.
    """
    response = _connections(ca_file).request(
        "GET", url, headers={"Range": byte_range}, preload_content=False, redirect=False
    )
    size = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    if response.status == HTTPStatus.PARTIAL_CONTENT and size:
        return _Answer(response, int(size[1]))
    response.close()
    response.release_conn()
    if response.status == HTTPStatus.NOT_FOUND:
        raise NotFound("not stored")
    raise Unavailable(f"the object store answered with status {response.status}")


class _Answer:
    """Bytes go from the socket into the caller's memory: ``urllib3`` would copy them twice, so the plain
    ``http.client`` response below it is read."""

    def __init__(self, response: urllib3.BaseHTTPResponse, size: int) -> None:
        self._response: Any = response
        self.size = size

    def readinto(self, out: memoryview) -> int:
        num_bytes: int = self._response._fp.readinto(out)
        return num_bytes

    def close(self) -> None:
        """Keeps the connection if everything was read."""
        if not self._response._fp.isclosed():
            self._response.close()
        self._response.release_conn()


@contextmanager
def _speaking_of(name: str) -> Iterator[None]:
    """Keeps errors of a connection quiet about the signed URL, which no log may have."""
    try:
        yield
    except (OSError, urllib3.exceptions.HTTPError, http.client.HTTPException) as error:
        raise Unavailable(f"chunk {name}: the object store fails ({type(error).__name__})") from None


@cache
def _connections(ca_file: str) -> urllib3.PoolManager:
    """Kept open from chunk to chunk, by all readers of this process."""
    return urllib3.PoolManager(
        maxsize=_KEPT_CONNECTIONS,
        socket_options=[*HTTPConnection.default_socket_options, _WINDOW],
        timeout=urllib3.Timeout(connect=_CONNECT_S, read=_READ_S),
        retries=False,
        ssl_context=trusting(ca_file),
    )
