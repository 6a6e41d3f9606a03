"""Reads a chunk's file from the object store into the caller's buffers, verifying every byte on the way.

One request brings all layers, received in the order in which they lie in the file, which is the order in
which they are wanted; reading another one next costs a request. Its frame is known before (``Frame``).
"""

from __future__ import annotations

import http.client
import os
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Protocol

import certifi
import urllib3
import xxhash

from shared.errors import CorruptData, KvquiltError, Unavailable
from shared.kv_format.filling import pieces_of
from shared.kv_format.frame import Array, read_frame
from shared.kv_format.header import ChunkHeader
from shared.kv_format.reader import ChunkFile

_CONNECT_S, _READ_S = 3.0, 10.0
_PARTIAL_CONTENT = 206
_KEPT_CONNECTIONS = 16


class Body(Protocol):
    """The bytes of an answer."""

    def readinto(self, out: memoryview) -> int:
        """Fills ``out``; fewer bytes only at the end."""
        ...

    def close(self) -> None: ...


Get = Callable[[int, int], Body]
"""Requests bytes [start, end) of the file. Raises ``Unavailable`` or ``OSError``."""


class RemoteChunk:
    """A file in the object store whose frame is verified. ``read_layer`` may be called from several threads
    at once; they take turns, the first layer first."""

    def __init__(
        self, tail: bytes, size_bytes: int, name: str, get: Get, instead: Callable[[], ChunkFile]
    ) -> None:
        """``tail``: the file's last bytes, as many as its frame needs. ``name``: what errors call the chunk.
        ``instead``: another way to the same file, once this one has failed; raises ``KvquiltError`` if there
        is none.

        Raises:
            CorruptData, NewerFormat: they are not the end of a chunk's file, or of one of a later version.
        """
        self._frame = read_frame(lambda _: (size_bytes, tail), name=name)
        self._name, self._get, self._instead = name, get, instead
        self._file: ChunkFile | None = None  # what the other way led to
        self._body: Body | None = None
        self._position = 0  # of the body's next byte in the file
        self._changed = threading.Condition()
        self._wanted: list[int] = []
        self._is_busy = False

    @property
    def header(self) -> ChunkHeader:
        return self._frame.header

    def read_layer(self, layer: int, *out: Array) -> None:
        """As ``ChunkFile.read_layer``.

        Raises:
            ValueError, CorruptData, Unavailable: as there.
        """
        parts = self._frame.parts_of_layer(out)
        with self._turn(layer):
            if self._file is None:
                try:
                    self._receive(layer, parts)
                    return
                except (CorruptData, Unavailable) as error:
                    self._end_body()
                    self._file = self._other_way(error)
            file = self._file
        file.read_layer(layer, *out)

    def close(self) -> None:
        self._end_body()
        if self._file is not None:
            self._file.close()

    @contextmanager
    def _turn(self, layer: int) -> Iterator[None]:
        """Alone with the body, before everybody who wants a later layer."""
        with self._changed:
            self._wanted.append(layer)
            self._changed.wait_for(lambda: not self._is_busy and layer == min(self._wanted))
            self._is_busy = True
        try:
            yield
        finally:
            with self._changed:
                self._wanted.remove(layer)
                self._is_busy = False
                self._changed.notify_all()

    def _receive(self, layer: int, parts: Sequence[memoryview]) -> None:
        layout = self._frame.seal.layout
        start = layout.head_len + layer * layout.layer_len
        checksum = xxhash.xxh3_64()
        with _speaking_of(self._name):
            if self._body is None or self._position != start:
                self._end_body()
                self._body, self._position = self._get(start, layout.tail_offset), start
            for piece in pieces_of(parts):
                if self._body.readinto(piece) != piece.nbytes:
                    raise Unavailable(f"chunk {self._name}: the object store ended an answer early")
                self._position += piece.nbytes
                checksum.update(piece)
        if checksum.intdigest() != self._frame.seal.layer_checksums[layer]:
            raise CorruptData(f"chunk {self._name}: layer {layer} fails its checksum")
        if self._position == layout.tail_offset:
            self._end_body()

    def _other_way(self, error: KvquiltError) -> ChunkFile:
        """The same file: layers of two that were computed apart must not mix."""
        try:
            file = self._instead()
        except KvquiltError:
            raise error from None
        if file.seal != self._frame.seal:
            file.close()
            raise Unavailable(f"chunk {self._name}: it was replaced while it was read")
        return file

    def _end_body(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            with suppress(OSError, urllib3.exceptions.HTTPError):
                body.close()


def request(url: str, ca_file: str, start: int, end: int) -> Body:
    """Requests bytes [start, end) of what is at ``url``; ``ca_file``: see ``trusting``.

    Raises:
        Unavailable: the answer is another one.
        OSError, urllib3.exceptions.HTTPError: there is none.
    """
    response = _connections(ca_file).request(
        "GET", url, headers={"Range": f"bytes={start}-{end - 1}"}, preload_content=False, redirect=False
    )
    if response.status != _PARTIAL_CONTENT:
        response.close()
        response.release_conn()
        raise Unavailable(f"the object store answered with status {response.status}")
    return _Answer(response)


class _Answer:
    """Bytes go from the socket into the caller's memory: ``urllib3`` would copy them twice, so the plain
    ``http.client`` response below it is read."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response: Any = response

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
    """What a connection raises names the signed URL, which no log may have."""
    try:
        yield
    except (OSError, urllib3.exceptions.HTTPError, http.client.HTTPException) as error:
        raise Unavailable(f"chunk {name}: the object store fails ({type(error).__name__})") from None


def trusting(ca_file: str) -> ssl.SSLContext:
    """Trusts the authorities of a PEM file; empty: the usual ones.

    Raises:
        OSError: it cannot be read, or is not one.
    """
    return ssl.create_default_context(cafile=ca_file or os.environ.get("SSL_CERT_FILE") or certifi.where())


@cache
def _connections(ca_file: str) -> urllib3.PoolManager:
    """Kept open from chunk to chunk, by all readers of this process."""
    return urllib3.PoolManager(
        maxsize=_KEPT_CONNECTIONS,
        timeout=urllib3.Timeout(connect=_CONNECT_S, read=_READ_S),
        retries=False,
        ssl_context=trusting(ca_file),
    )
