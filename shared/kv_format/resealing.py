"""Seals the file of a chunk with the installation's key, in place: the layers stay where they are, the tail
grows."""

from __future__ import annotations

import os
from pathlib import Path

from shared.errors import CorruptData
from shared.kv_format.frame import ChunkSummary
from shared.kv_format.reader import ChunkFile, frame_of
from shared.kv_format.sealing import SealKeys, new_salt
from shared.kv_format.writer import read_ends, sealed_tail


def seal_chunk(path: str | Path, keys: SealKeys, name: str = "") -> ChunkSummary:
    """Verifies every byte and gives the file a MAC of the current key, unless it has one. One pass over the
    layers either way. Not durable, and not in one step: for a file that nobody reads yet.

    Raises:
        NotFound, CorruptData, NewerFormat: as ``verify_chunk``.
    """
    with ChunkFile.open(path, name=name, keys=keys) as file:
        if keys.is_current(file.summary.key_id):
            file.verify_layers(keys)
            return file.summary
        salt, seal = new_salt(), file.seal
        tags = file.verify_layers(keys, retag=salt)
    with open(path, "r+b") as writing:
        fd = writing.fileno()
        if frame_of(fd, name).seal != seal:
            raise CorruptData(
                f"chunk {name or Path(path).stem}: somebody changed its file while it was sealed"
            )
        _, footer = read_ends(fd, seal.layout)
        tail = sealed_tail(keys.sealed(seal, salt, tags, footer), footer)
        os.pwrite(fd, tail, seal.layout.tail_offset)
        os.ftruncate(fd, seal.layout.tail_offset + len(tail))
        return frame_of(fd, name, keys=keys).summary
