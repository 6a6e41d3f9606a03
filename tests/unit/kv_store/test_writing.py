"""A node stores chunks: in its own tiers, and from there in the object store."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from services.kv_store.tiers.chunk_names import blob_of
from shared.errors import CorruptData, StorageFull, Unavailable
from tests.dict_blobs import DictBlobs
from tests.faulty_blobs import FailingBlobs, HookedBlobs
from tests.kv_chunks import newer_chunk_bytes
from tests.unit.kv_store.large_chunks import (
    SIZE,
    A,
    B,
    C,
    Make,
    bytes_in,
    copies_of,
    counter,
    large,
    open_one,
    put,
    whole,
)


async def test_what_was_put_is_in_the_object_store_when_that_is_acknowledged(make: Make) -> None:
    objects = DictBlobs()
    tiers = make(objects)
    assert await put(tiers) is False
    assert objects.data == {blob_of(A): large(A)}
    assert bytes_in(tiers) == {"disk": SIZE, "pending": 0}
    assert await put(tiers) is True
    assert counter(tiers, "uploads") == 1


async def test_while_the_object_store_is_down_nothing_is_acknowledged_but_what_may_come_later(
    make: Make,
) -> None:
    objects = FailingBlobs(DictBlobs(), Unavailable("down"))
    tiers = make(objects)
    with pytest.raises(Unavailable):
        await put(tiers)
    assert await put(tiers, B, write_back=True) is False
    assert bytes_in(tiers) == {"disk": 0, "pending": SIZE}
    assert (await open_one(tiers, B)).exists
    with pytest.raises(Unavailable):
        await put(tiers, B)
    objects.failure = None
    await tiers.uploaded()
    assert bytes_in(tiers) == {"disk": SIZE, "pending": 0}
    assert list(objects.inner.data) == [blob_of(B)]  # type: ignore[attr-defined]


async def test_a_new_life_uploads_what_waited_and_what_was_stored_before_there_was_an_object_store(
    make: Make,
) -> None:
    alone = make(None)
    await put(alone)
    assert bytes_in(alone) == {"disk": SIZE}
    objects = DictBlobs()
    tiers = make(objects)
    assert bytes_in(tiers) == {"disk": 0, "pending": SIZE}
    tiers.upload_pending()
    await tiers.uploaded()
    assert objects.data == {blob_of(A): large(A)}
    assert bytes_in(tiers) == {"disk": SIZE, "pending": 0}


async def test_a_chunk_deleted_while_it_is_uploaded_is_not_in_the_object_store_afterwards(make: Make) -> None:
    inner, uploading, may_end = DictBlobs(), threading.Event(), threading.Event()

    def hook(method: str, name: str) -> None:
        if method == "put_file":
            uploading.set()
            may_end.wait(30)

    tiers = make(HookedBlobs(inner, hook))
    await put(tiers, write_back=True)
    await asyncio.to_thread(uploading.wait)
    deleting = asyncio.create_task(tiers.delete(A))
    await asyncio.sleep(0)
    may_end.set()
    assert await deleting
    await tiers.delete_object(A)
    await tiers.uploaded()
    assert inner.data == {}
    assert list(copies_of(tiers).all()) == []


async def test_what_is_replaced_while_it_waits_is_uploaded_as_it_is_then(make: Make) -> None:
    objects = FailingBlobs(inner := DictBlobs(), Unavailable("down"))
    tiers = make(objects)
    await put(tiers, seed=1, write_back=True)
    await put(tiers, seed=2, write_back=True, replace=True)
    objects.failure = None
    await put(tiers, seed=3, replace=True)
    await tiers.uploaded()
    assert inner.data == {blob_of(A): large(A, 3)}
    assert await whole(tiers) == large(A, 3)
    assert bytes_in(tiers) == {"disk": SIZE, "pending": 0}


async def test_what_waited_does_not_replace_a_newer_object(make: Make, stored: DictBlobs) -> None:
    stored.put(blob_of(A), newer_chunk_bytes(A))
    objects = FailingBlobs(stored, Unavailable("down"))
    tiers = make(objects)
    assert await put(tiers, write_back=True) is False
    objects.failure = None
    await tiers.uploaded()
    assert stored.data[blob_of(A)] == newer_chunk_bytes(A)
    assert bytes_in(tiers) == {"disk": SIZE, "pending": 0}


async def test_two_writers_of_a_chunk_store_it_once(make: Make) -> None:
    calls: Counter[str] = Counter()
    tiers = make(HookedBlobs(DictBlobs(), lambda method, _: calls.update([method])))
    assert sorted(await asyncio.gather(*(put(tiers) for _ in range(4)))) == [False, True, True, True]
    assert calls["put_file"] == 1


@pytest.mark.parametrize("data", [b"", b"hello", large(A)[:-1], large(B)])
async def test_what_is_not_the_chunk_is_refused_and_dropped(
    make: Make, stored: DictBlobs, data: bytes
) -> None:
    tiers = make(stored)
    staged = tiers.disk.staging.new()
    staged.write_bytes(data)
    with pytest.raises(CorruptData):
        await tiers.put(C, staged)
    assert set(stored.data) == {blob_of(A)}
    assert not staged.exists()


async def test_a_full_disk_does_not_keep_a_chunk_from_the_object_store(make: Make) -> None:
    objects = DictBlobs()
    tiers = make(objects, capacity_bytes=1)
    await put(tiers)
    assert objects.data == {blob_of(A): large(A)}
    with pytest.raises(StorageFull):
        await put(tiers, B, write_back=True)
