"""Chunks in the object store."""

from __future__ import annotations

import pytest

from services.kv_store.fetching.verification import verify_object
from services.kv_store.tiers.chunk_names import blob_of
from services.kv_store.tiers.object_chunks import is_newer_object
from shared.errors import CorruptData, NewerFormat, NotFound
from tests.dict_blobs import DictBlobs
from tests.faulty_blobs import TruncatedBlobs
from tests.kv_chunks import chunk_bytes, chunk_id_of, newer_chunk_bytes

A = chunk_id_of(1)
DATA = chunk_bytes(A)


def stored(data: bytes = DATA) -> DictBlobs:
    blobs = DictBlobs()
    blobs.put(blob_of(A), data)
    return blobs


@pytest.mark.parametrize("position", range(0, len(DATA), 97))
def test_no_changed_byte_goes_unseen(position: int) -> None:
    data = bytearray(DATA)
    data[position] ^= 1
    with pytest.raises(CorruptData, match=A):
        verify_object(stored(bytes(data)), A)


def test_a_whole_object_is_verified_and_described() -> None:
    summary = verify_object(stored(), A)
    assert (summary.header.chunk_id, summary.size_bytes) == (A, len(DATA))


@pytest.mark.parametrize("length", [0, 1, 100, len(DATA) // 2, len(DATA) - 1])
def test_a_truncated_object_is_corrupt(length: int) -> None:
    with pytest.raises(CorruptData):
        verify_object(stored(DATA[:length]), A)


def test_bodies_that_come_incomplete_are_noticed() -> None:
    with pytest.raises(CorruptData):
        verify_object(TruncatedBlobs(stored(), keep_bytes=10), A)


def test_the_chunk_of_another_name_is_corrupt() -> None:
    with pytest.raises(CorruptData, match="another chunk"):
        verify_object(stored(chunk_bytes(chunk_id_of(2))), A)


def test_what_is_not_there_and_what_is_newer_are_told_apart() -> None:
    with pytest.raises(NotFound):
        verify_object(DictBlobs(), A)
    with pytest.raises(NewerFormat):
        verify_object(stored(newer_chunk_bytes(A)), A)
    assert [is_newer_object(blobs, A) for blobs in (DictBlobs(), stored(), stored(newer_chunk_bytes(A)))] == [
        False,
        False,
        True,
    ]
