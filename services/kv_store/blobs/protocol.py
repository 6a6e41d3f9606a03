"""Named, immutable byte strings, whatever keeps them: every tier is made of these.

Shared memory and the local disk (``blobs.directory``) and an S3-compatible server (``s3.bucket``) keep the
same promises; the contract tests and a state machine against a plain dict hold all of them to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shared.errors import CorruptData


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [start, start + length)."""

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class From:
    """The bytes from ``start`` on."""

    start: int = 0


@dataclass(frozen=True, slots=True)
class Last:
    """The last ``length`` bytes; all of a shorter blob."""

    length: int


ByteRange = Span | From | Last
WHOLE = From()
Sink = Callable[[int, memoryview], None]
"""Offset in the blob, and the bytes that are there."""
_SINK_PIECE_BYTES = 512 << 10
"""Fits into a core's second-level cache: what was just received is passed on from there."""


@dataclass(frozen=True, slots=True)
class BlobStat:
    """``version`` changes whenever the bytes do. ``modified_s``: seconds since 1970, by the keeper's
    clock."""

    name: str
    size_bytes: int
    modified_s: float
    version: str


@dataclass(frozen=True, slots=True)
class BlobPage:
    """In the order of names. ``truncated``: more follow."""

    blobs: tuple[BlobStat, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class Link:
    """A URL that gives one blob's bytes to a GET, ranges included, for a while and without credentials: it is
    one itself. ``ca_file``: PEM file of the authority that signed the server's certificate, empty for the
    usual ones."""

    url: str
    ca_file: str = ""


class Blobs(Protocol):
    """Every method may block, and may be called from any thread. A blob appears whole or not at all, and a
    reader that began keeps reading the bytes that it began with, or fails.

    Names are ``/``-separated; each part consists of ASCII letters, digits, ``.``, ``_``, ``-`` and does not
    begin with a dot.

    Raises (any method):
        Unavailable: the keeper cannot be reached, is overloaded or ended early; the same call may work again.
        StorageFull: no space left.
        FailedPrecondition: it refuses us (credentials, bucket); the detail says what to set.
        InternalError: it failed; the log has the reason.
    """

    def stat(self, name: str) -> BlobStat | None: ...

    def read(self, name: str, byte_range: ByteRange = WHOLE) -> Iterator[bytes]:
        """The bytes in pieces; what lies beyond the end is not there.

        Raises:
            NotFound: no such blob (raised by the first ``next``).
        """
        ...

    def read_to(self, name: str, byte_range: Span | Last, sink: Sink) -> int:
        """Gives ``sink`` the bytes piece by piece, and returns how long the whole blob is. No memory is
        allocated per piece: each is valid during its call only.

        Raises:
            NotFound: no such blob.
            CorruptData: it ends before the ``Span`` does.
        """
        ...

    def link(self, name: str) -> Link | None:
        """Returns where others can read the blob, which may not be there; None: only through this. Asks
        nobody."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Durable when it returns; replaces what was there in one step."""
        ...

    def put_file(self, name: str, path: Path) -> None:
        """Like ``put``, with the bytes of a closed file on this machine, which stays."""
        ...

    def delete(self, name: str) -> bool:
        """Whether it was there."""
        ...

    def list(self, prefix: str = "", start_after: str = "", limit: int = 1000) -> BlobPage:
        """Blobs whose names begin with ``prefix`` and are greater than ``start_after``."""
        ...


def list_all(blobs: Blobs, prefix: str, start_after: str = "", page_len: int = 1000) -> Iterator[BlobStat]:
    """Every blob whose name begins with ``prefix`` and is greater than ``start_after``, page by page."""
    while True:
        page = blobs.list(prefix, start_after, page_len)
        yield from page.blobs
        if not page.truncated:
            return
        start_after = page.blobs[-1].name


_pieces = threading.local()


def piece_buffer() -> memoryview:
    """For ``read_to``: the calling thread's own, used again and again, for fresh memory costs as much as the
    copy."""
    if not hasattr(_pieces, "buffer"):
        _pieces.buffer = memoryview(bytearray(_SINK_PIECE_BYTES))
    buffer: memoryview = _pieces.buffer
    return buffer


def check_whole(name: str, byte_range: Span | Last, num_bytes: int) -> None:
    """
    Raises:
        CorruptData: a ``Span`` of ``name`` had only ``num_bytes``.
    """
    if isinstance(byte_range, Span) and num_bytes < byte_range.length:
        raise CorruptData(f"{name} is shorter than it was")
