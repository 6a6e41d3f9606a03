"""A chunk's file under another identity holds the same KV."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from shared.errors import CorruptData
from shared.kv_format import verify_chunk, write_chunk
from shared.kv_format.renaming import rename_chunk
from tests.kv_chunks import header_of, kv_of


@pytest.mark.parametrize(("layers", "tokens"), [(1, 1), (2, 5), (3, 4000)])
def test_a_renamed_file_is_the_one_that_would_have_been_written(
    tmp_path: Path, layers: int, tokens: int
) -> None:
    header = header_of(layers=layers, tokens=tokens, chunk_id="ab" * 20)
    renamed = dataclasses.replace(header, chunk_id="0c" * 20)
    write_chunk(tmp_path / "a", header, *kv_of(header))
    write_chunk(tmp_path / "b", renamed, *kv_of(renamed))
    rename_chunk(tmp_path / "a", "0c" * 20)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert verify_chunk(tmp_path / "a").header == renamed


def test_a_damaged_file_is_not_renamed(tmp_path: Path) -> None:
    header = header_of()
    write_chunk(tmp_path / "a", header, *kv_of(header))
    data = bytearray((tmp_path / "a").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(CorruptData):
        rename_chunk(tmp_path / "a", "0c" * 20)
    assert (tmp_path / "a").read_bytes() == data


def test_an_identity_of_another_length_is_refused(tmp_path: Path) -> None:
    header = header_of()
    write_chunk(tmp_path / "a", header, *kv_of(header))
    with pytest.raises(ValueError, match="chunk_id"):
        rename_chunk(tmp_path / "a", "0c")
