"""Reads a chunk's file into the caller's buffers, verifying every byte on the way.

Files are read, never mapped: one that shrinks under a map kills its reader with SIGBUS.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import xxhash

from shared.errors import CorruptData, NotFound
from shared.kv_format.header import ITEM_SIZES, ChunkHeader, from_metadata
from shared.kv_format.layout import (
    ARROW_MAGIC,
    CLOSING_BYTES,
    END_OF_STREAM,
    SEAL_BYTES,
    Layout,
    footer_len,
    layout_of,
    padded,
    seal_of,
)

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class ChunkSummary:
    """``layers``: (offset, length) of every layer's record batch in the file."""

    header: ChunkHeader
    size_bytes: int
    layers: tuple[tuple[int, int], ...]


class ChunkFile:
    """An open file whose head, seal and footer are verified. ``read_layer`` may be called from several threads at once."""

    def __init__(self, fd: int, name: str) -> None:
        """Takes ``fd`` over. Use ``open``."""
        self._fd = fd
        self._name = name
        try:
            self.size_bytes, self._layout, schema = _read_frame(fd)
            self.header, self._checksums = from_metadata(schema.metadata)
            if self._layout.num_layers != self.header.num_layers or self._layout.body_len != 2 * padded(self.header.tensor_bytes):
                raise ValueError("its layout does not fit its shapes")
        except (OSError, EOFError, ValueError) as error:
            raise CorruptData(f"chunk {name}: {error}") from None

    @classmethod
    def open(cls, path: str | Path, layers: Sequence[tuple[int, int]] | None = None, name: str = "") -> ChunkFile:
        """``layers``: where the store says that the layers lie, if the caller knows. ``name``: what errors call the chunk; empty
        means the file's name.

        Raises:
            NotFound: there is no such file (it may just have been deleted).
            CorruptData: not a whole, unchanged file of this format version, or its layers lie elsewhere.
        """
        name = name or Path(path).stem
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise NotFound(f"chunk {name}: not stored") from None
        except OSError as error:
            raise CorruptData(f"chunk {name}: cannot be opened: {os.strerror(error.errno or 0)}") from None
        try:
            file = cls(fd, name)
            if layers is not None and tuple(layers) != file.summary.layers:
                raise CorruptData(f"chunk {name}: its layers do not lie where the store says")
        except BaseException:
            os.close(fd)
            raise
        return file

    @property
    def summary(self) -> ChunkSummary:
        return ChunkSummary(self.header, self.size_bytes, self._layout.layers())

    def read_layer(self, layer: int, k_out: Array, v_out: Array) -> None:
        """Fills both [kv_heads, tokens, head_dim] arrays (contiguous, items of the header's size) without a copy in between.

        Raises:
            ValueError: an array does not have the header's shape.
            CorruptData: the bytes are not those that were written; the arrays' contents are then undefined.
        """
        k, v = self._bytes_of(k_out), self._bytes_of(v_out)
        num_padding = self._layout.body_len // 2 - k.nbytes
        k_padding, v_padding = bytearray(num_padding), bytearray(num_padding)
        try:
            _fill(self._fd, [k, memoryview(k_padding), v, memoryview(v_padding)], self._layout.body_offset(layer))
        except (OSError, EOFError) as error:
            raise CorruptData(f"chunk {self._name}: layer {layer} cannot be read: {error}") from None
        checksum = xxhash.xxh3_64(k)
        checksum.update(v)
        if checksum.intdigest() != self._checksums[layer] or any(k_padding) or any(v_padding):
            raise CorruptData(f"chunk {self._name}: layer {layer} fails its checksum")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _bytes_of(self, out: Array) -> memoryview:
        shape = (self.header.num_kv_heads, self.header.num_tokens, self.header.head_dim)
        if out.shape != shape or out.dtype.itemsize != ITEM_SIZES[self.header.dtype] or not out.flags.c_contiguous:
            raise ValueError(f"the buffer is {out.dtype}{out.shape}, but the chunk is {self.header.dtype}{shape}, contiguous")
        return out.data.cast("B")


def inspect_chunk(path: str | Path) -> ChunkSummary:
    """Reads and verifies all but the layers' bodies. Raises like ``ChunkFile.open``."""
    with ChunkFile.open(path) as file:
        return file.summary


def verify_chunk(path: str | Path, name: str = "") -> ChunkSummary:
    """Reads and verifies every byte. Raises like ``ChunkFile.open`` and ``ChunkFile.read_layer``."""
    with ChunkFile.open(path, name=name) as file:
        header = file.header
        shape = (header.num_kv_heads, header.num_tokens, header.head_dim)
        k, v = (np.empty(shape, dtype=f"u{ITEM_SIZES[header.dtype]}") for _ in "kv")
        for layer in range(header.num_layers):
            file.read_layer(layer, k, v)
        return file.summary


def _read_frame(fd: int) -> tuple[int, Layout, pa.Schema]:
    """Size, layout and schema from everything but the bodies: verified first, parsed then.

    Raises:
        ValueError, EOFError: says what is wrong.
    """
    status = os.fstat(fd)
    size = status.st_size
    if not stat.S_ISREG(status.st_mode) or size < CLOSING_BYTES:
        raise ValueError("it is too short for an Arrow file; it may be truncated")
    footer_offset = size - footer_len(_pread(fd, CLOSING_BYTES, size - CLOSING_BYTES))
    tail_offset = footer_offset - SEAL_BYTES - len(END_OF_STREAM)
    if tail_offset < 0:
        raise ValueError("its footer is longer than the file; it may be truncated")
    tail = _pread(fd, size - tail_offset, tail_offset)
    seal, footer = tail[len(END_OF_STREAM) : -(size - footer_offset)], tail[footer_offset - tail_offset :]
    layout = layout_of(seal, footer_offset)
    head = _pread(fd, layout.head_len, 0)
    messages = b"".join(_pread(fd, length, offset) for offset, length in layout.messages())
    if tail != END_OF_STREAM + seal_of(layout, head, messages, footer) + footer:
        raise ValueError("head, messages or footer fail their checksum")
    try:
        return size, layout, pa.ipc.read_schema(pa.py_buffer(head[padded(len(ARROW_MAGIC)) :]))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"its schema cannot be read: {error}") from None


def _pread(fd: int, length: int, offset: int) -> bytes:
    data = os.pread(fd, length, offset)
    if len(data) != length:
        raise EOFError("it ends too early; it may be truncated")
    return data


def _fill(fd: int, buffers: list[memoryview], offset: int) -> None:
    """Reads until all buffers are full; the kernel returns less than asked for beyond 2 GiB.

    Raises:
        EOFError: the file ends before.
    """
    pending = [b for b in buffers if b.nbytes]
    while pending:
        count = os.preadv(fd, pending, offset)
        if count == 0:
            raise EOFError("the file ends too early")
        offset += count
        while pending and count >= pending[0].nbytes:
            count -= pending.pop(0).nbytes
        if count:
            pending[0] = pending[0][count:]
