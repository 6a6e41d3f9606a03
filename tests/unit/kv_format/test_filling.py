"""Reading and hashing in one go: the bytes and the hash are those of the file, however the buffers are
cut."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import xxhash

from shared.kv_format.filling import PIECE_BYTES, fill_and_hash


@pytest.mark.parametrize("seed", range(20))
def test_buffers_of_any_sizes_are_filled_in_order_and_hashed_as_one(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    sizes = [
        draw.choice([0, 1, 7, 192, 16 << 10, (16 << 10) + 1, PIECE_BYTES, 3 * PIECE_BYTES + 5])
        for _ in range(draw.randrange(1, 7))
    ]
    offset = draw.randrange(100)
    data = random.Random(seed + 1).randbytes(offset + sum(sizes) + 9)
    path = tmp_path / "file"
    path.write_bytes(data)
    buffers = [memoryview(bytearray(size)) for size in sizes]
    with open(path, "rb") as file:
        checksum = fill_and_hash(file.fileno(), buffers, offset)
    wanted = data[offset : offset + sum(sizes)]
    assert b"".join(buffers) == wanted
    assert checksum == xxhash.xxh3_64_intdigest(wanted)


@pytest.mark.parametrize("missing", [1, 200, PIECE_BYTES + 1])
def test_a_file_that_ends_too_early_is_noticed(tmp_path: Path, missing: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * PIECE_BYTES))
    fd = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(EOFError):
            fill_and_hash(
                fd, [memoryview(bytearray(100)), memoryview(bytearray(2 * PIECE_BYTES - 100 + missing))], 0
            )
    finally:
        os.close(fd)
