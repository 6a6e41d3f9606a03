"""The end of a chunk's file, which says about all of it where the layers lie, what they must be read into,
and their checksums."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from shared.errors import CorruptData, NewerFormat
from shared.kv_buffers import BufferSpec
from shared.kv_format.header import ChunkHeader, from_metadata
from shared.kv_format.layout import Seal, ShortTail, padded, seal_of_tail
from shared.kv_format.sealing import SealKeys

Array = np.ndarray[Any, np.dtype[Any]]
Tail = tuple[int, bytes]
"""How long a file is, and its last bytes (all of one that is shorter than was asked for)."""

TAIL_GUESS_BYTES = 16 << 10
"""Holds seal and footer of a chunk of 1024 tokens and 64 layers."""


@dataclass(frozen=True, slots=True)
class ChunkSummary:
    """``layers``: (offset, length) of every layer's record batch in the file. ``key_id``: of the key that it
    is sealed with, empty where it has no MAC."""

    header: ChunkHeader
    size_bytes: int
    layers: tuple[tuple[int, int], ...]
    key_id: str = ""


@dataclass(frozen=True, slots=True)
class _Room:
    """An array for one buffer of a layer, as it must be. Worked out once per file: it is compared with
    for every layer."""

    name: str
    shape: tuple[int, ...]
    item_bytes: int
    num_padding: int


@dataclass(frozen=True)
class Frame:
    """Verified: nothing of it was parsed before its checksum was seen to fit."""

    seal: Seal
    header: ChunkHeader
    size_bytes: int

    @classmethod
    def of_tail(cls, tail: bytes, size_bytes: int, keys: SealKeys | None = None) -> Frame:
        """From the last bytes of a file of ``size_bytes``. ``TAIL_GUESS_BYTES`` of them are mostly enough.
        ``keys`` None: whoever sealed it is believed.

        Raises:
            ShortTail: more of the end is needed; it says how much.
            NewerFormat: a later version wrote it, or it is sealed with a key that is not among ``keys``.
            ValueError: not the end of a whole, unchanged file of this format version; says what is wrong.
        """
        seal, footer_at = seal_of_tail(tail, size_bytes)
        if keys is not None:
            keys.check(seal, tail[footer_at:])
        try:
            metadata = pa.ipc.open_file(
                pa.py_buffer(tail)
            ).schema.metadata  # the footer repeats the schema of the head
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"its schema cannot be read: {error}") from None
        header = from_metadata(metadata)
        if (seal.layout.num_layers, seal.layout.body_len) != (header.num_layers, header.body_bytes):
            raise ValueError("its layout does not fit its shapes")
        return cls(seal, header, size_bytes)

    @property
    def summary(self) -> ChunkSummary:
        mac = self.seal.mac
        key_id = "" if mac is None else mac.key_id.hex()
        return ChunkSummary(self.header, self.size_bytes, self.seal.layout.layers(), key_id)

    def empty_layer(self) -> list[Array]:
        """Arrays for ``parts_of_layer``, of unsigned integers; the contents are arbitrary."""
        return [np.empty(room.shape, dtype=f"u{room.item_bytes}") for room in self._rooms]

    def parts_of_layer(self, out: Sequence[Array]) -> list[memoryview]:
        """Lists where the bytes of a layer go: its message, then every buffer with its padding.

        Raises:
            ValueError: an array does not have the header's shape.
        """
        if len(out) != len(self._rooms):
            raise ValueError(f"{len(out)} arrays for {len(self._rooms)} buffers")
        parts = [memoryview(bytearray(self.seal.layout.message_len))]
        for array, room in zip(out, self._rooms, strict=True):
            if array.shape != room.shape or array.itemsize != room.item_bytes or not array.flags.c_contiguous:
                raise ValueError(
                    f"the buffer for {room.name} is {array.dtype}{array.shape}, but the chunk's is "
                    f"{room.shape}, contiguous"
                )
            parts.append(array.data.cast("B"))
            if room.num_padding:
                parts.append(memoryview(bytearray(room.num_padding)))
        return parts

    @cached_property
    def _rooms(self) -> list[_Room]:
        def room(spec: BufferSpec) -> _Room:
            num_bytes = self.header.num_kv_heads * spec.row_bytes
            return _Room(
                spec.name,
                (self.header.num_kv_heads, *spec.shape),
                spec.item_bytes,
                padded(num_bytes) - num_bytes,
            )

        return [room(spec) for spec in self.header.buffers]


def reading_frame(
    chunk_id: str = "", name: str = "", keys: SealKeys | None = None
) -> Generator[int, Tail, tuple[Frame, bytes]]:
    """Asks for as many of a file's last bytes as it takes, whoever brings them: yields how many it wants next
    and is sent them. Returns the frame, verified, and the bytes that say it. ``chunk_id``: whose it must be.
    ``name``: what errors call the chunk, if not so. ``keys``: see ``Frame.of_tail``.

    Raises:
        NewerFormat: a later version wrote it, or its key is not there.
        CorruptData: not the end of a whole, unchanged file of this format version, or another chunk's.
    """
    length, name = TAIL_GUESS_BYTES, name or chunk_id
    called = f"chunk {name}: " if name else ""
    while True:
        size, tail = yield length
        try:
            frame = Frame.of_tail(tail, size, keys)
        except ShortTail as short:
            if short.needed_bytes <= length:
                raise CorruptData(f"{called}it ends early") from None
            length = short.needed_bytes
        except NewerFormat as error:
            raise NewerFormat(f"{called}{error.detail}") from None
        except ValueError as error:
            raise CorruptData(f"{called}{error}") from None
        else:
            if chunk_id and frame.header.chunk_id != chunk_id:
                raise CorruptData(f"{called}the file holds another chunk")
            return frame, tail


def read_frame(
    end: Callable[[int], Tail], chunk_id: str = "", name: str = "", keys: SealKeys | None = None
) -> Frame:
    """``end``: gives the last so many bytes. Raises like ``reading_frame``, and what ``end`` raises."""
    steps = reading_frame(chunk_id, name, keys)
    length = next(steps)
    while True:
        try:
            length = steps.send(end(length))
        except StopIteration as done:
            frame: Frame = done.value[0]
            return frame
