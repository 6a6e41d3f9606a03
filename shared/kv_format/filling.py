"""Reads runs of bytes into the caller's buffers and hashes them on the way.

The hash costs least while what was just read is still in the processor's cache, so large buffers are read and
hashed in pieces; and small buffers ride along with the next piece, because every call to the operating system
costs as much as copying tens of kilobytes. Both calls release the interpreter's lock, so several threads read
several layers at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import xxhash

PIECE_BYTES = 512 << 10
"""With what it was copied from, it fits into the second-level cache of a server's core."""
_SMALL_BYTES = 16 << 10


def fill_and_hash(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
    """Fills the buffers (of bytes) one after the other with what the file holds from ``offset`` on; XXH3-64
    of it.

    Raises:
        EOFError: the file ends before.
        OSError: it cannot be read.
    """
    checksum = xxhash.xxh3_64()
    together: list[memoryview] = []
    for piece in pieces_of(buffers):
        together.append(piece)
        if piece.nbytes > _SMALL_BYTES:
            offset += _read(fd, together, offset)
            for read in together:
                checksum.update(read)
            together = []
    _read(fd, together, offset)
    for read in together:
        checksum.update(read)
    return checksum.intdigest()


class Hash(Protocol):
    def update(self, piece: bytes | memoryview, /) -> object: ...


def hash_run(fd: int, offset: int, length: int, scratch: memoryview, hashes: Sequence[Hash]) -> None:
    """Feeds what the file holds from ``offset`` on to all of ``hashes``, in pieces of ``scratch``.

    Raises:
        EOFError: the file ends before.
        OSError: it cannot be read.
    """
    end = offset + length
    while offset < end:
        piece = scratch[: min(len(scratch), end - offset)]
        offset += _read(fd, [piece], offset)
        for one in hashes:
            one.update(piece)


def pieces_of(buffers: Sequence[memoryview]) -> Sequence[memoryview]:
    """Parts buffers that are larger than ``PIECE_BYTES``."""
    if all(buffer.nbytes <= PIECE_BYTES for buffer in buffers):
        return buffers
    return [
        buffer[start : start + PIECE_BYTES]
        for buffer in buffers
        for start in range(0, buffer.nbytes, PIECE_BYTES)
    ]


def _read(fd: int, pieces: Sequence[memoryview], offset: int) -> int:
    """Fills the pieces; how many bytes they hold."""
    wanted = sum([piece.nbytes for piece in pieces])
    if wanted and os.preadv(fd, pieces, offset) != wanted:
        _fill_slowly(fd, pieces, offset)
    return wanted


def _fill_slowly(fd: int, pieces: Sequence[memoryview], offset: int) -> None:
    """The operating system may give less than it was asked for, for instance at the end of the file."""
    for piece in pieces:
        done = 0
        while done < piece.nbytes:
            count = os.preadv(fd, [piece[done:]], offset)
            if count == 0:
                raise EOFError("the file ends too early")
            done += count
            offset += count
