"""Whether a file is the chunk that it should be."""

from __future__ import annotations

import os
from pathlib import Path

from shared.errors import CorruptData, NewerFormat, NotFound
from shared.kv_format import ChunkSummary, inspect_chunk, verify_chunk

Stamp = tuple[int, int, int]
"""Of a file that nobody changes it stays the same: inode, size, and time of the last change, which is
compared with itself only."""


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


def is_newer(path: Path) -> bool:
    """Whether a later version of the format wrote it."""
    try:
        inspect_chunk(path)
    except NewerFormat:
        return True
    except (NotFound, CorruptData):
        pass
    return False


def stamp_of(path: Path) -> Stamp:
    """
    Raises:
        FileNotFoundError
    """
    status = os.stat(path, follow_symlinks=False)
    return status.st_ino, status.st_size, status.st_mtime_ns
