"""Chunks in the object store, whatever keeps it. Everything here blocks, and raises what ``Blobs`` raises."""

from __future__ import annotations

from collections.abc import Iterator

from services.kv_store.blobs import Blobs, BlobStat, Last, Span
from services.kv_store.chunk_files import verified
from services.kv_store.chunk_names import CHUNKS, blob_of, chunk_of
from services.kv_store.local_tier import LocalTier
from services.kv_store.tier_files import Copy
from shared.errors import CorruptData, NewerFormat, NotFound
from shared.kv_format import TAIL_GUESS_BYTES, ChunkSummary, ShortTail, summary_of_tail


def all_objects(objects: Blobs, start_after: str = "", page_len: int = 1000) -> Iterator[BlobStat]:
    """Every chunk after the one called ``start_after``, in the order of ids."""
    after = blob_of(start_after) if start_after else ""
    while True:
        page = objects.list(CHUNKS, after, page_len)
        yield from (blob for blob in page.blobs if chunk_of(blob.name))
        if not page.truncated:
            return
        after = page.blobs[-1].name


def find_object(objects: Blobs, chunk_id: str) -> Copy | None:
    stat = objects.stat(blob_of(chunk_id))
    return Copy(chunk_id, stat.size_bytes, stat.modified_s) if stat else None


def verify_object(objects: Blobs, chunk_id: str, room: LocalTier) -> ChunkSummary:
    """Reads every byte, by way of a staged file in ``room``.

    Raises:
        NotFound, CorruptData, NewerFormat: it is not a whole chunk file, or another chunk's.
        StorageFull: there is no place for the staged file.
    """
    found = _there(objects, chunk_id)
    file, offset = room.allocate(found.size_bytes), 0
    try:
        for piece in objects.read(blob_of(chunk_id), Span(0, found.size_bytes)):
            file.write(offset, piece)
            offset += len(piece)
        return verified(file.path, chunk_id)
    finally:
        file.close()
        room.staging.discard(file.path)


def is_newer_object(objects: Blobs, chunk_id: str) -> bool:
    """Whether a later version of the format wrote it; as far as its end tells, the rest is not read."""
    try:
        _inspect(objects, chunk_id)
    except NewerFormat:
        return True
    except (NotFound, CorruptData):
        pass
    return False


def _inspect(objects: Blobs, chunk_id: str) -> ChunkSummary:
    found, length = _there(objects, chunk_id), TAIL_GUESS_BYTES
    while True:
        tail = b"".join(objects.read(blob_of(chunk_id), Last(length)))
        try:
            return summary_of_tail(tail, found.size_bytes)
        except ShortTail as error:
            if error.needed_bytes <= length:
                raise CorruptData(f"chunk {chunk_id}: it ends early") from None
            length = error.needed_bytes


def _there(objects: Blobs, chunk_id: str) -> Copy:
    found = find_object(objects, chunk_id)
    if found is None:
        raise NotFound(f"chunk {chunk_id}: not stored")
    return found
