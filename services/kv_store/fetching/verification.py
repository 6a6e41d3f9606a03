"""Verifies the bytes of a chunk as they arrive, while they are still in the processor's cache.

    │ head │ layer 0 │ layer 1 │ layer 2 │ … │ end of stream, seal, footer │
    └──────── part 0 ──────────┴─ part 1 ─…  └─ there before: the frame ───┘

A part consists of whole layers, so that each is hashed by one thread, in the order of its bytes, and counts
as there only once its checksum fits: nobody is told of bytes that were not verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import xxhash

from services.kv_store.blobs.protocol import Blobs, Span
from services.kv_store.tiers.chunk_names import blob_of
from services.kv_store.tiers.object_chunks import object_frame
from shared.errors import CorruptData
from shared.kv_format import ChunkSummary, Frame

Mark = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class FileSection:
    """Bytes [start, end) of the file that have a checksum of their own. ``layer`` None: the head,
    which Arrow's readers need and ours do not."""

    start: int
    end: int
    checksum: int
    layer: int | None


class ArrivingPart:
    """Consecutive sections. One thread at a time feeds it."""

    def __init__(self, sections: Sequence[FileSection], chunk_id: str, mark: Mark) -> None:
        """``mark``: called with every layer that is there and right."""
        self._sections, self._chunk_id, self._mark = sections, chunk_id, mark
        self._num_whole = 0
        self._hash, self._position = xxhash.xxh3_64(), sections[0].start
        self.is_damaged = False
        """The bytes that came last are not those that were stored."""

    def rest(self) -> tuple[int, int]:
        """Offset and length of what is to be fed now: all from the first section on that is not whole."""
        self._begin()
        return self._position, self._sections[-1].end - self._position

    def arrived(self, offset: int, piece: bytes | memoryview) -> None:
        """The bytes that follow those fed before, at ``offset``; they are in the file already.

        Raises:
            CorruptData: a section is not what was stored, or these bytes do not follow.
        """
        if offset != self._position:
            raise CorruptData(f"chunk {self._chunk_id}: its bytes do not come in their order")
        piece = memoryview(piece)
        while piece and self._num_whole < len(self._sections):
            section = self._sections[self._num_whole]
            mine = piece[: section.end - self._position]
            self._hash.update(mine)
            self._position += len(mine)
            piece = piece[len(mine) :]
            if self._position == section.end:
                self._finish(section)

    def check_whole(self) -> None:
        """
        Raises:
            CorruptData: something is missing.
        """
        if self._num_whole < len(self._sections):
            raise CorruptData(f"chunk {self._chunk_id}: less came than was asked for")

    def _finish(self, section: FileSection) -> None:
        self.is_damaged = self._hash.intdigest() != section.checksum
        if self.is_damaged:
            what = "its head" if section.layer is None else f"layer {section.layer}"
            raise CorruptData(f"chunk {self._chunk_id}: {what} fails its checksum")
        self._num_whole += 1
        if section.layer is not None:
            self._mark(section.layer)
        if self._num_whole < len(self._sections):
            self._begin()

    def _begin(self) -> None:
        self._hash = xxhash.xxh3_64()
        if self._num_whole < len(self._sections):
            self._position = self._sections[self._num_whole].start


def sections_of(frame: Frame) -> list[FileSection]:
    """All of a file but its tail, which the frame vouches for."""
    head = FileSection(0, frame.seal.layout.head_len, frame.seal.head_checksum, None)
    layers = zip(frame.summary.layers, frame.seal.layer_checksums, strict=True)
    return [head, *(FileSection(at, at + size, sum_, i) for i, ((at, size), sum_) in enumerate(layers))]


def parts_of(sections: Sequence[FileSection], part_bytes: int) -> Iterator[list[FileSection]]:
    """Consecutive sections: one layer at least, and of more than one at most ``part_bytes`` together."""
    part: list[FileSection] = []
    for section in sections:
        if part and part[-1].layer is not None and section.end - part[0].start > part_bytes:
            yield part
            part = []
        part.append(section)
    if part:
        yield part


def verify_object(objects: Blobs, chunk_id: str) -> ChunkSummary:
    """Reads every byte of a chunk in the object store: one request for the end, one for the rest.

    Raises:
        NotFound, CorruptData, NewerFormat: it is not a whole chunk file, or another chunk's.
        Unavailable, FailedPrecondition, InternalError: as of ``Blobs``.
    """
    frame = object_frame(objects, chunk_id)
    whole = ArrivingPart(sections_of(frame), chunk_id, mark=lambda layer: None)
    objects.read_to(blob_of(chunk_id), Span(*whole.rest()), whole.arrived)
    whole.check_whole()
    return frame.summary
