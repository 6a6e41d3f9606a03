"""Chunks in the object store, whatever keeps it. Everything here blocks, and raises what ``Blobs`` raises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import xxhash

from services.kv_store.blobs.protocol import Blobs, Last, Span, list_all
from services.kv_store.tiers.chunk_files import is_newer
from services.kv_store.tiers.chunk_names import CHUNKS, blob_of, chunk_of
from services.kv_store.tiers.files import FileCopy
from shared.errors import CorruptData
from shared.kv_format import Array, ChunkSummary, Frame, hashed_pieces, read_frame


def all_objects(objects: Blobs, start_after: str = "", page_len: int = 1000) -> Iterator[FileCopy]:
    """Every chunk after the one called ``start_after``, in the order of ids."""
    for blob in list_all(objects, CHUNKS, blob_of(start_after) if start_after else "", page_len):
        if chunk_id := chunk_of(blob.name):
            yield FileCopy(chunk_id, blob.size_bytes, blob.modified_s)


def find_object(objects: Blobs, chunk_id: str) -> FileCopy | None:
    stat = objects.stat(blob_of(chunk_id))
    return FileCopy(chunk_id, stat.size_bytes, stat.modified_s) if stat else None


class ObjectChunk:
    """A chunk in the object store whose layers are read from there into the caller's arrays, with no copy on
    disk in between."""

    def __init__(self, objects: Blobs, chunk_id: str) -> None:
        """Reads and verifies the end.

        Raises:
            NotFound, CorruptData, NewerFormat: it is not a whole chunk file, or another chunk's.
        """
        self._objects, self._chunk_id = objects, chunk_id
        self._frame = _frame_of(objects, chunk_id)

    @property
    def summary(self) -> ChunkSummary:
        return self._frame.summary

    def empty_layer(self) -> list[Array]:
        """Arrays for one layer of ``read_layers``."""
        return self._frame.empty_layer()

    def read_layers(self, first: int, layers: Sequence[Sequence[Array]]) -> None:
        """Fills the arrays of consecutive layers (see ``ChunkFile.read_layer``) with one ranged read, each
        verified while it is still in the processor's cache. May be called from several threads at once.

        Raises:
            ValueError: an array does not have the header's shape. NotFound, CorruptData: it was removed, or
            is not what was stored; the arrays' contents are then undefined.
        """
        layout = self._frame.seal.layout
        span = Span(layout.head_len + first * layout.layer_len, len(layers) * layout.layer_len)
        pieces = [
            hashed_pieces(
                self._frame.parts_of_layer(out), partial(self._frame.check_layer, layer, name=self._chunk_id)
            )
            for layer, out in enumerate(layers, first)
        ]
        self._objects.read_into(blob_of(self._chunk_id), span, chain.from_iterable(pieces))

    def check_head(self) -> None:
        """Arrow's readers need it, ours do not.

        Raises:
            CorruptData: it is not what was written.
        """
        layout = self._frame.seal.layout
        head = b"".join(self._objects.read(blob_of(self._chunk_id), Span(0, layout.head_len)))
        if xxhash.xxh3_64_intdigest(head) != self._frame.seal.head_checksum:
            raise CorruptData(f"chunk {self._chunk_id}: its head fails its checksum")


def verify_object(objects: Blobs, chunk_id: str) -> ChunkSummary:
    """Reads every byte. Raises like ``ObjectChunk``."""
    chunk = ObjectChunk(objects, chunk_id)
    chunk.check_head()
    chunk.read_layers(0, [chunk.empty_layer()] * len(chunk.summary.layers))
    return chunk.summary


def read_tail(objects: Blobs, chunk_id: str, length: int) -> tuple[int, bytes]:
    """Reads how long the chunk's object is, and its last ``length`` bytes (all of a shorter one).

    Raises:
        NotFound: it is not there.
        CorruptData: they came incomplete.
    """
    pieces: list[bytes] = []
    size = objects.read_to(blob_of(chunk_id), Last(length), lambda _, piece: pieces.append(bytes(piece)))
    tail = b"".join(pieces)
    if len(tail) != min(length, size):
        raise CorruptData(f"chunk {chunk_id}: what came of its object's end is not as long as it should be")
    return size, tail


def is_newer_object(objects: Blobs, chunk_id: str) -> bool:
    """Whether a later version of the format wrote it; as far as its end tells, the rest is not read."""
    return is_newer(lambda: _frame_of(objects, chunk_id))


def _frame_of(objects: Blobs, chunk_id: str) -> Frame:
    return read_frame(partial(read_tail, objects, chunk_id), chunk_id)
