"""Gives the file of a chunk another identity: its KV is the same for another tenant, its name is not."""

from __future__ import annotations

import os
from pathlib import Path

from shared.errors import CorruptData
from shared.kv_format.reader import frame_of, verify_chunk
from shared.kv_format.writer import read_ends, tail_of


def rename_chunk(path: str | Path, chunk_id: str) -> None:
    """Writes ``chunk_id``, of the length of the old one, into head and footer of a closed file, with new
    checksums and without a MAC, which is the store's to give. Not durable, and not in one step: for a copy
    that nobody reads yet.

    Raises:
        CorruptData: not a whole file of this format version.
    """
    old = verify_chunk(path).header.chunk_id
    if len(old) != len(chunk_id):
        raise ValueError(f"chunk_id: {len(chunk_id)} characters, but the file has room for {len(old)}")
    with open(path, "r+b") as file:
        fd = file.fileno()
        seal = frame_of(fd).seal
        head, footer = (_renamed(part, old, chunk_id) for part in read_ends(fd, seal.layout))
        os.pwrite(fd, head, 0)
        tail = tail_of(seal.layout, seal.layer_checksums, head, footer)
        os.pwrite(fd, tail, seal.layout.tail_offset)
        os.ftruncate(fd, seal.layout.tail_offset + len(tail))
    if verify_chunk(path).header.chunk_id != chunk_id:
        raise CorruptData(f"chunk {old}: its file could not be renamed")


def _renamed(part: bytes, old: str, new: str) -> bytes:
    """Only where the header says it: nothing moves, as both have the same length."""
    return part.replace(f'"chunk_id":"{old}"'.encode(), f'"chunk_id":"{new}"'.encode())
