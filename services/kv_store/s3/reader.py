"""Reading a range of an object as fast as the connection gives it, across connections that break."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from minio.error import MinioException

from services.kv_store.blobs.protocol import WHOLE, ByteRange, From, Last, Span
from services.kv_store.s3.errors import answer_of, speaking_s3
from services.kv_store.s3.retries import Attempts
from shared.errors import InternalError, Unavailable
from shared.kv_types import PIECE_BYTES

Request = Callable[[dict[str, str | list[str] | tuple[str]]], Any]
"""A GET with these headers: a ``urllib3`` response whose body is not read yet."""
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_NOT_SATISFIABLE, _PRECONDITION_FAILED = 416, 412


class Replaced(Unavailable):
    """The object is another one by now: going on would mix the two."""


class ObjectReader:
    """The range as a stream. After a break it goes on at the byte that is missing, of the same version of the
    object.

    A body that ends before the length that the server announced is a break. Bytes go from the socket into the
    caller's memory: ``urllib3`` would copy them twice, so the plain ``http.client`` response below it is
    read.
    """

    def __init__(self, request: Request, byte_range: ByteRange, attempts: Attempts) -> None:
        self._request, self._range, self._attempts = request, byte_range, attempts
        self._response: Any = None
        self._version: str | None = None  # the object's, once a response named it
        self._position = self._end = self._body_end = 0
        self.size = 0
        """Of the whole object, known after the first byte was asked for."""

    def readinto(self, out: memoryview) -> int:
        """Number of bytes, 0 at the end of the range. Raises like
        ``services.kv_store.blobs.protocol.Blobs``."""
        while True:
            try:
                with speaking_s3():
                    num_bytes = self._readinto(out)
                self._attempts.succeeded()
                return num_bytes
            except Replaced:
                self.close()
                raise
            except Unavailable as error:
                self.close()
                self._attempts.failed(error)
            except BaseException:
                self.close()
                raise

    @property
    def position(self) -> int:
        """Returns where in the object the next byte stands."""
        return self._position

    def pieces(self) -> Iterator[bytes]:
        piece = memoryview(bytearray(PIECE_BYTES))
        try:
            while num_bytes := self.readinto(piece):
                yield bytes(piece[:num_bytes])
        finally:
            self.close()

    def close(self) -> None:
        """Gives the connection back if the body was read to its end, else ends it: nobody else could use
        it."""
        response, self._response = self._response, None
        if response is not None:
            if self._position != self._body_end:
                response.close()
            response.release_conn()

    def _readinto(self, out: memoryview) -> int:
        if self._response is None and (self._version is None or self._position < self._end):
            self._connect()
        wanted = min(len(out), self._end - self._position)
        if not wanted:
            return 0
        num_bytes: int = self._response._fp.readinto(out[:wanted])
        if not num_bytes:
            raise Unavailable("the object store ended an answer early; retry")
        self._position += num_bytes
        return num_bytes

    def _connect(self) -> None:
        try:
            self._response = self._request(self._headers())
        except MinioException as error:
            if answer_of(error).status == _PRECONDITION_FAILED:
                raise _replaced() from error
            if answer_of(error).status != _NOT_SATISFIABLE or self._version is not None:
                raise
            if not isinstance(self._range, Last):
                self._version = ""  # there, and without bytes in this range
                return
            self._range = WHOLE  # some servers refuse a suffix that is longer than the object
            self._response = self._request(self._headers())
        start, end, size = self._extent()
        version = self._response.headers.get("etag", "")
        if self._version is None:
            self._begin(start, end, size, version)
        elif version != self._version:
            self._position = start  # so that the connection is not used again
            raise _replaced()
        elif start != self._position:
            raise _ignores_ranges()

    def _begin(self, start: int, end: int, size: int, version: str) -> None:
        match self._range:
            case Span(first, length):
                self._end = min(end, first + length)
            case From(first):
                self._end = end
            case Last(length):
                first = max(0, size - length)
                self._end = end
        self._version, self.size, self._position, self._body_end = version, size, start, end
        if start != first:
            raise _ignores_ranges()

    def _headers(self) -> dict[str, str | list[str] | tuple[str]]:
        if self._version is not None:
            return {"Range": f"bytes={self._position}-{self._end - 1}", "If-Match": self._version}
        match self._range:
            case Span(start, length):
                return {"Range": f"bytes={start}-{start + length - 1}"}
            case Last(length):
                return {"Range": f"bytes=-{length}"}
            case From(start):
                return {"Range": f"bytes={start}-"} if start else {}

    def _extent(self) -> tuple[int, int, int]:
        """Start and end of the body within the object, and the object's size."""
        headers = self._response.headers
        if match := _CONTENT_RANGE.fullmatch(headers.get("content-range", "")):
            first, last, size = map(int, match.groups())
            return first, last + 1, size
        size = int(headers["content-length"])
        return 0, size, size


def _replaced() -> Replaced:
    return Replaced("the object was replaced while it was read; read it again")


def _ignores_ranges() -> InternalError:
    return InternalError("the object store does not answer with the range that it was asked for")
