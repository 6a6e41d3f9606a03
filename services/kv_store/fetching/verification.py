"""Verifies the bytes of a chunk as they arrive, while they are still in the processor's cache.

    │ head │ layer 0 │ layer 1 │ layer 2 │ … │ end of stream, seal, footer │
    └──────── part 0 ──────────┴─ part 1 ─…  └─ there before: the frame ───┘

A part consists of whole layers, so that each is hashed by one thread, in the order of its bytes, and counts
as there only once its checksum fits: nobody is told of bytes that were not verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import xxhash

from services.kv_store.blobs.protocol import Blobs, Span
from services.kv_store.tiers.chunk_names import blob_of
from services.kv_store.tiers.object_chunks import object_frame
from shared.errors import CorruptData
from shared.kv_format import ChunkSummary, Frame, SealKeys
from shared.kv_format.sealing import LayerTag

Mark = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class FileSection:
    """Bytes [start, end) of the file that have a checksum of their own. ``layer`` None: the head,
    which Arrow's readers need and ours do not. ``tagging``: makes what must become ``tag``; None: they have
    none, or nobody looks."""

    start: int
    end: int
    checksum: int
    layer: int | None
    tag: bytes = b""
    tagging: Callable[[], LayerTag] | None = None


class ArrivingPart:
    """Consecutive sections. One thread at a time feeds it."""

    def __init__(self, sections: Sequence[FileSection], chunk_id: str, mark: Mark) -> None:
        """``mark``: called with every layer that is there and right."""
        self._sections, self._chunk_id, self._mark = sections, chunk_id, mark
        self._num_whole = 0
        self._hash, self._position = xxhash.xxh3_64(), sections[0].start
        self._tag: LayerTag | None = None
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
            if self._tag is not None:
                self._tag.update(mine)
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
        self.is_damaged = self._tag is not None and self._tag.digest() != section.tag
        if self.is_damaged:
            raise CorruptData(
                f"chunk {self._chunk_id}: layer {section.layer} was forged: it is not what was sealed"
            )
        self._num_whole += 1
        if section.layer is not None:
            self._mark(section.layer)
        if self._num_whole < len(self._sections):
            self._begin()

    def _begin(self) -> None:
        self._hash = xxhash.xxh3_64()
        if self._num_whole < len(self._sections):
            section = self._sections[self._num_whole]
            self._position = section.start
            self._tag = None if section.tagging is None else section.tagging()


def sections_of(frame: Frame, keys: SealKeys | None = None) -> list[FileSection]:
    """All of a file but its tail, which the frame vouches for. ``keys``: layers are compared with their tags,
    too, where they have some."""
    head = FileSection(0, frame.seal.layout.head_len, frame.seal.head_checksum, None)
    layers = zip(frame.summary.layers, frame.seal.layer_checksums, strict=True)
    plain = [FileSection(at, at + size, sum_, i) for i, ((at, size), sum_) in enumerate(layers)]
    mac = frame.seal.mac
    key = None if keys is None or mac is None else keys.find(mac.key_id)
    if key is None or mac is None:
        return [head, *plain]
    tagged = zip(plain, mac.layer_tags, strict=True)
    return [
        head,
        *(replace(s, tag=tag, tagging=partial(key.tag, mac.salt, i)) for i, (s, tag) in enumerate(tagged)),
    ]


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


def verify_object(objects: Blobs, chunk_id: str, keys: SealKeys | None = None) -> ChunkSummary:
    """Reads every byte of a chunk in the object store: one request for the end, one for the rest. ``keys``:
    its seal and its layers' tags must be of one of them.

    Raises:
        NotFound, CorruptData, NewerFormat: it is not a whole chunk file, or another chunk's.
        Unavailable, FailedPrecondition, InternalError: as of ``Blobs``.
    """
    frame = object_frame(objects, chunk_id, keys)
    whole = ArrivingPart(sections_of(frame, keys), chunk_id, mark=lambda layer: None)
    objects.read_to(blob_of(chunk_id), Span(*whole.rest()), whole.arrived)
    whole.check_whole()
    return frame.summary
