"""Looks whether a file is the chunk that it should be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shared.errors import CorruptData, NewerFormat, NotFound
from shared.kv_format import ChunkSummary, verify_chunk


def verified(path: Path, chunk_id: str) -> ChunkSummary:
    """Reads every byte of a chunk's file.

    Raises:
        NotFound, CorruptData, NewerFormat: it is not a whole file, or another chunk's.
    """
    summary = verify_chunk(path, chunk_id)
    if summary.header.chunk_id != chunk_id:
        raise CorruptData(f"chunk {chunk_id}: the file holds another chunk")
    return summary


def is_damaged(path: Path, chunk_id: str) -> bool:
    """Reads every byte. One of a later version is not damaged, nor is one that is not there."""
    try:
        verified(path, chunk_id)
    except CorruptData:
        return True
    except (NotFound, NewerFormat):
        pass
    return False


def is_newer(inspect: Callable[[], object]) -> bool:
    """Whether a later version of the format wrote what ``inspect`` looks at."""
    try:
        inspect()
    except NewerFormat:
        return True
    except (NotFound, CorruptData):
        pass
    return False
