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

from shared.errors import CorruptData, NewerFormat, NotFound
from shared.kv_buffers import BufferSpec
from shared.kv_format.filling import fill_and_hash
from shared.kv_format.header import ChunkHeader, from_metadata
from shared.kv_format.layout import Seal, ShortTail, padded, seal_of_tail
from shared.kv_format.progress import ProgressReader

Array = np.ndarray[Any, np.dtype[Any]]

TAIL_GUESS_BYTES = 16 << 10
"""Holds seal and footer of a chunk of 1024 tokens and 64 layers."""


@dataclass(frozen=True, slots=True)
class ChunkSummary:
    """``layers``: (offset, length) of every layer's record batch in the file."""

    header: ChunkHeader
    size_bytes: int
    layers: tuple[tuple[int, int], ...]


def summary_of_tail(tail: bytes, size_bytes: int) -> ChunkSummary:
    """What the last bytes of a file of ``size_bytes`` say about it, verified. ``TAIL_GUESS_BYTES`` of them are mostly enough.

    Raises:
        ShortTail: more of the end is needed; it says how much.
        CorruptData: not the end of a whole, unchanged file of this format version.
        NewerFormat: a later version wrote it.
    """
    try:
        seal, header = _frame_of(tail, size_bytes)
    except ValueError as error:
        raise CorruptData(str(error)) from None
    return ChunkSummary(header, size_bytes, seal.layout.layers())


@dataclass(frozen=True, slots=True)
class _Room:
    """What the array for one buffer of a layer must be like. Worked out once per file: it is compared with for every layer."""

    name: str
    shape: tuple[int, ...]
    item_bytes: int
    num_padding: int


def _rooms(header: ChunkHeader) -> list[_Room]:
    def room(spec: BufferSpec) -> _Room:
        num_bytes = header.num_kv_heads * spec.row_bytes
        return _Room(spec.name, (header.num_kv_heads, *spec.shape), spec.item_bytes, padded(num_bytes) - num_bytes)

    return [room(spec) for spec in header.buffers]


class ChunkFile:
    """An open file whose frame is verified. ``read_layer`` may be called from several threads at once."""

    def __init__(self, fd: int, name: str, progress: ProgressReader | None) -> None:
        """Takes both over. Use ``open``."""
        self._fd = fd
        self._name = name
        self._progress = progress
        try:
            if progress:
                progress.wait_for_frame()
            self.size_bytes = _size_of(fd)
            self._seal, self.header = _read_frame(fd, self.size_bytes, whole=progress is None)
            self._rooms = _rooms(self.header)
        except NewerFormat as error:
            raise NewerFormat(f"chunk {name}: {error.detail}") from None
        except (OSError, EOFError, ValueError) as error:
            raise CorruptData(f"chunk {name}: {error}") from None

    @classmethod
    def open(
        cls,
        path: str | Path,
        layers: Sequence[tuple[int, int]] | None = None,
        name: str = "",
        progress: str | Path = "",
    ) -> ChunkFile:
        """``layers``: where the store says that the layers lie, if the caller knows. ``name``: what errors call the chunk; empty
        means the file's name. ``progress``: the file is still arriving, this one beside it says how far it is.

        Raises:
            NotFound: there is no such file (it may just have been deleted, or have arrived and moved: ask the store again).
            CorruptData: not a whole, unchanged file of this format version, or its layers lie elsewhere.
            NewerFormat: a later version wrote it.
            Unavailable: it stopped arriving.
        """
        name = name or Path(path).stem
        fd = _open(path, name)
        arriving = None
        try:
            arriving = _progress_of(progress, name) if progress else None
            file = cls(fd, name, arriving)
            if layers is not None and tuple(layers) != file.summary.layers:
                raise CorruptData(f"chunk {name}: its layers do not lie where the store says")
        except BaseException:
            os.close(fd)
            if arriving:
                arriving.close()
            raise
        return file

    @property
    def summary(self) -> ChunkSummary:
        return ChunkSummary(self.header, self.size_bytes, self._seal.layout.layers())

    def read_layer(self, layer: int, *out: Array) -> None:
        """Fills an array for each of ``header.buffers``: [kv_heads, *shape], contiguous, items of the size that it names. The bytes
        go there directly. A layer that is still arriving is waited for.

        Raises:
            ValueError: an array does not have the header's shape.
            CorruptData: the bytes are not those that were written; the arrays' contents are then undefined.
            Unavailable: the layer stopped arriving.
        """
        layout = self._seal.layout
        parts = self._parts_of_layer(out)
        if self._progress:
            self._progress.wait_for_layer(layer)
        try:
            checksum = fill_and_hash(self._fd, parts, layout.head_len + layer * layout.layer_len)
        except (OSError, EOFError) as error:
            raise CorruptData(f"chunk {self._name}: layer {layer} cannot be read: {error}") from None
        if checksum != self._seal.layer_checksums[layer]:
            raise CorruptData(f"chunk {self._name}: layer {layer} fails its checksum")

    def close(self) -> None:
        if self._progress:
            self._progress.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _parts_of_layer(self, out: Sequence[Array]) -> list[memoryview]:
        """Where the bytes of a layer go: its message, then every buffer with its padding."""
        if len(out) != len(self._rooms):
            raise ValueError(f"{len(out)} arrays for {len(self._rooms)} buffers")
        parts = [memoryview(bytearray(self._seal.layout.message_len))]
        for array, room in zip(out, self._rooms, strict=True):
            if array.shape != room.shape or array.itemsize != room.item_bytes or not array.flags.c_contiguous:
                raise ValueError(
                    f"the buffer for {room.name} is {array.dtype}{array.shape}, but the chunk's is {room.shape}, contiguous"
                )
            parts.append(array.data.cast("B"))
            if room.num_padding:
                parts.append(memoryview(bytearray(room.num_padding)))
        return parts


def inspect_chunk(path: str | Path) -> ChunkSummary:
    """Reads and verifies all but the layers. Raises like ``ChunkFile.open``."""
    with ChunkFile.open(path) as file:
        return file.summary


def verify_chunk(path: str | Path, name: str = "") -> ChunkSummary:
    """Reads and verifies every byte. Raises like ``ChunkFile.open`` and ``ChunkFile.read_layer``."""
    with ChunkFile.open(path, name=name) as file:
        header = file.header
        out = [np.empty((header.num_kv_heads, *spec.shape), dtype=f"u{spec.item_bytes}") for spec in header.buffers]
        for layer in range(header.num_layers):
            file.read_layer(layer, *out)
        return file.summary


def _open(path: str | Path, name: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise NotFound(f"chunk {name}: not stored") from None
    except OSError as error:
        raise CorruptData(f"chunk {name}: cannot be opened: {os.strerror(error.errno or 0)}") from None


def _progress_of(path: str | Path, name: str) -> ProgressReader:
    try:
        return ProgressReader(path)
    except FileNotFoundError:
        raise NotFound(f"chunk {name}: it has arrived meanwhile, or never will") from None


def _size_of(fd: int) -> int:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a plain file")
    return status.st_size


def _read_frame(fd: int, size: int, whole: bool) -> tuple[Seal, ChunkHeader]:
    """From the tail. In a file that is not ``whole`` yet, nothing else may be there.

    Raises:
        NewerFormat, ValueError, EOFError: says what is wrong.
    """
    seal, header = _frame_from_end(fd, size)
    if whole and xxhash.xxh3_64_intdigest(_pread(fd, seal.layout.head_len, 0)) != seal.head_checksum:
        raise ValueError("its head fails its checksum")
    return seal, header


def _frame_from_end(fd: int, size: int) -> tuple[Seal, ChunkHeader]:
    length = min(size, TAIL_GUESS_BYTES)
    while True:
        try:
            return _frame_of(_pread(fd, length, size - length), size)
        except ShortTail as short:
            length = short.needed_bytes


def _frame_of(tail: bytes, size: int) -> tuple[Seal, ChunkHeader]:
    """Verified first, parsed then.

    Raises:
        ShortTail, NewerFormat, ValueError
    """
    seal, _ = seal_of_tail(tail, size)
    try:
        metadata = pa.ipc.open_file(pa.py_buffer(tail)).schema.metadata  # the footer repeats the schema of the head
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"its schema cannot be read: {error}") from None
    header = from_metadata(metadata)
    if (seal.layout.num_layers, seal.layout.body_len) != (header.num_layers, header.body_bytes):
        raise ValueError("its layout does not fit its shapes")
    return seal, header


def _pread(fd: int, length: int, offset: int) -> bytes:
    data = os.pread(fd, length, offset)
    if len(data) != length:
        raise EOFError("it ends too early; it may be truncated")
    return data
