"""Gives the file of a chunk another identity: its KV is the same for another tenant, its name is not."""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from shared.errors import CorruptData
from shared.kv_format.frame import TAIL_GUESS_BYTES
from shared.kv_format.layout import END_OF_STREAM, Seal, ShortTail, seal_of_tail
from shared.kv_format.reader import verify_chunk


def rename_chunk(path: str | Path, chunk_id: str) -> None:
    """Writes ``chunk_id``, of the length of the old one, into head and footer of a closed file, and seals it
    anew. Not durable, and not in one step: for a copy that nobody reads yet.

    Raises:
        CorruptData: not a whole file of this format version.
    """
    old = verify_chunk(path).header.chunk_id
    if len(old) != len(chunk_id):
        raise ValueError(f"chunk_id: {len(chunk_id)} characters, but the file has room for {len(old)}")
    with open(path, "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        seal, footer_at = _seal_of(file.fileno(), size)
        head = _renamed(os.pread(file.fileno(), seal.layout.head_len, 0), old, chunk_id)
        footer = _renamed(os.pread(file.fileno(), size - footer_at, footer_at), old, chunk_id)
        new_seal = Seal(seal.layout, seal.layer_checksums, xxhash.xxh3_64_intdigest(head))
        os.pwrite(file.fileno(), head, 0)
        os.pwrite(file.fileno(), END_OF_STREAM + new_seal.pack(footer) + footer, seal.layout.tail_offset)
    if verify_chunk(path).header.chunk_id != chunk_id:
        raise CorruptData(f"chunk {old}: its file could not be renamed")


def _seal_of(fd: int, size: int) -> tuple[Seal, int]:
    """The seal, and where the footer begins in the file."""
    length = min(size, TAIL_GUESS_BYTES)
    while True:
        try:
            seal, footer_at = seal_of_tail(os.pread(fd, length, size - length), size)
            return seal, size - length + footer_at
        except ShortTail as error:
            length = error.needed_bytes


def _renamed(part: bytes, old: str, new: str) -> bytes:
    """Only where the header says it: nothing moves, as both have the same length."""
    return part.replace(f'"chunk_id":"{old}"'.encode(), f'"chunk_id":"{new}"'.encode())
