"""Chunks in the object store, whatever keeps it. Everything here blocks, and raises what ``Blobs`` raises."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from services.kv_store.blobs.protocol import Blobs, Last, list_all
from services.kv_store.tiers.chunk_files import is_newer
from services.kv_store.tiers.chunk_names import CHUNKS, blob_of, chunk_of
from services.kv_store.tiers.files import FileCopy
from shared.errors import CorruptData
from shared.kv_format import Frame, SealKeys, read_frame


def all_objects(objects: Blobs, start_after: str = "", page_len: int = 1000) -> Iterator[FileCopy]:
    """Every chunk after the one called ``start_after``, in the order of ids."""
    for blob in list_all(objects, CHUNKS, blob_of(start_after) if start_after else "", page_len):
        if chunk_id := chunk_of(blob.name):
            yield FileCopy(chunk_id, blob.size_bytes, blob.modified_s)


def find_object(objects: Blobs, chunk_id: str) -> FileCopy | None:
    stat = objects.stat(blob_of(chunk_id))
    return FileCopy(chunk_id, stat.size_bytes, stat.modified_s) if stat else None


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
    return is_newer(lambda: object_frame(objects, chunk_id))


def object_frame(objects: Blobs, chunk_id: str, keys: SealKeys | None = None) -> Frame:
    """Reads and verifies the end.

    Raises:
        NotFound, CorruptData, NewerFormat: it is not the end of a whole chunk file, or another chunk's.
    """
    return read_frame(partial(read_tail, objects, chunk_id), chunk_id, keys=keys)
