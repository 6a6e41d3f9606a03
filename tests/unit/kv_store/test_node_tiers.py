"""A node's tiers: where chunks find room, and which copies there are of them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from services.kv_store.tiers.chunk_names import blob_of
from services.kv_store.upkeep.scrub import Copy
from shared.errors import CorruptData, NotFound, Unavailable
from shared.kv_format import ChunkFile, verify_chunk
from tests.dict_blobs import DictBlobs
from tests.faulty_blobs import FailingBlobs, HangingBlobs
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
    nobody,
    open_one,
    put,
    read_layers,
    whole,
)


async def test_where_the_disk_has_no_room_a_chunk_is_fetched_to_memory(make: Make, stored: DictBlobs) -> None:
    tiers = make(stored, capacity_bytes=SIZE - 1, memory_bytes=SIZE)
    assert await whole(tiers) == large(A)
    assert (await open_one(tiers)).tier == "memory"
    assert bytes_in(tiers) == {"memory": SIZE, "disk": 0, "pending": 0}


async def test_where_nothing_has_room_a_chunk_is_absent(make: Make, stored: DictBlobs) -> None:
    tiers = make(stored, capacity_bytes=SIZE - 1, memory_bytes=SIZE - 1)
    assert not (await open_one(tiers)).exists


async def test_a_chunk_that_loses_its_room_while_it_arrives_can_still_be_read(
    make: Make, stored: DictBlobs
) -> None:
    objects = HangingBlobs(stored)
    tiers = make(objects, capacity_bytes=SIZE)
    opened = await open_one(tiers)
    tiers.disk.capacity_bytes = SIZE - 1
    reading = asyncio.create_task(asyncio.to_thread(read_layers, opened))
    objects.may_answer.set()
    assert await reading
    assert not await tiers.fetched(A, nobody())
    again = await open_one(tiers)
    assert Path(again.path).read_bytes() == large(A)
    assert bytes_in(tiers) == {"disk": 0, "pending": 0}
    await tiers.delete(A)
    assert (await open_one(tiers)).path != again.path


async def test_the_second_use_brings_a_chunk_to_memory(make: Make, stored: DictBlobs) -> None:
    tiers = make(stored, memory_bytes=SIZE)
    await whole(tiers)
    while (opened := await open_one(tiers)).tier != "memory":
        await asyncio.sleep(0)
    assert verify_chunk(opened.path).header.chunk_id == A
    while not counter(tiers, "promotions"):  # counted when its thread is back
        await asyncio.sleep(0)
    assert (counter(tiers, "promotions"), counter(tiers, "memory_hits")) == (1, 1)
    assert bytes_in(tiers) == {"memory": SIZE, "disk": SIZE, "pending": 0}
    assert {c.tier for c in copies_of(tiers).all()} == {"memory", "disk"}

    await put(tiers, seed=1, replace=True)
    assert await whole(tiers) == large(A, 1)
    await tiers.delete(A)
    assert list(copies_of(tiers).all()) == []


async def test_a_damaged_copy_in_memory_gives_way_to_that_on_the_disk(make: Make, stored: DictBlobs) -> None:
    tiers = make(stored, memory_bytes=SIZE)
    await whole(tiers)
    while (opened := await open_one(tiers)).tier != "memory":
        await asyncio.sleep(0)
    os.truncate(opened.path, SIZE - 1)
    opened = await open_one(tiers)
    assert (opened.tier, Path(opened.path).read_bytes()) == ("disk", large(A))


async def test_a_damaged_copy_on_the_disk_gives_way_to_the_object(make: Make, stored: DictBlobs) -> None:
    tiers = make(stored)
    await whole(tiers)
    os.truncate((await open_one(tiers)).path, SIZE - 1)
    assert (await open_one(tiers)).exists
    assert await whole(tiers) == large(A)
    assert counter(tiers, "object_fetches") == 2


async def test_a_file_damaged_while_it_is_read_is_found_by_its_reader_and_healed_by_the_next_put(
    make: Make, stored: DictBlobs
) -> None:
    tiers = make(stored)
    await whole(tiers)
    opened = await open_one(tiers)
    with ChunkFile.open(opened.path, opened.layers) as file, open(opened.path, "r+b") as raw:
        raw.seek(opened.layers[2][0] + 300)
        raw.write(b"damage")
        raw.flush()
        header = file.header
        with pytest.raises(CorruptData):
            file.read_layer(
                2, *(np.empty((header.num_kv_heads, *b.shape), f"u{b.item_bytes}") for b in header.buffers)
            )
    assert await put(tiers, replace=True) is True
    assert await whole(tiers) == large(A)


async def test_every_copy_is_named_and_verified_by_itself(make: Make, stored: DictBlobs) -> None:
    objects = FailingBlobs(stored)
    tiers = make(objects)
    await whole(tiers)
    objects.failure = Unavailable("down")
    await put(tiers, B, write_back=True)
    copies = sorted(copies_of(tiers).all(), key=lambda c: c.tier)
    assert copies == [Copy(A, "disk", SIZE), Copy(B, "pending", SIZE)]
    assert [await copies_of(tiers).verify_copy(c.chunk_id, c.tier) for c in copies] == [SIZE, SIZE]
    objects.failure = None
    assert await copies_of(tiers).verify_copy(A, "objects") == SIZE
    with pytest.raises(NotFound):
        await copies_of(tiers).verify_copy(C, "objects")
    stored.put(blob_of(C), large(A))
    with pytest.raises(CorruptData):
        await copies_of(tiers).verify_copy(C, "objects")
    assert await copies_of(tiers).remove_copy(C, "objects")
    assert await copies_of(tiers).remove_copy(A, "disk")
    assert not await copies_of(tiers).remove_copy(A, "disk")
    assert tiers.leased(B) is False


@pytest.mark.parametrize("tier", ["disk", "objects"])
async def test_a_damaged_copy_is_restored_from_a_good_one(make: Make, stored: DictBlobs, tier: str) -> None:
    tiers = make(stored)
    await whole(tiers)
    data = bytearray(large(A))
    data[SIZE // 2] ^= 1
    if tier == "disk":
        tiers.disk.path_of(A).write_bytes(data)
    else:
        stored.put(blob_of(A), bytes(data))
    with pytest.raises(CorruptData):
        await copies_of(tiers).verify_copy(A, tier)
    assert await copies_of(tiers).restore(A)
    assert await copies_of(tiers).verify_copy(A, tier) == SIZE
    assert stored.data[blob_of(A)] == large(A)
    assert await whole(tiers) == large(A)


async def test_what_has_no_good_copy_is_not_restored(make: Make, stored: DictBlobs) -> None:
    tiers = make(stored)
    await whole(tiers)
    stored.put(blob_of(A), large(A)[:-1])
    os.truncate(tiers.disk.path_of(A), 100)
    assert not await copies_of(tiers).restore(A)
    assert not (await open_one(tiers)).exists


async def test_stats_are_exact_to_the_byte(make: Make, stored: DictBlobs, tmp_path: Path) -> None:
    tiers = make(stored, capacity_bytes=10 * SIZE, memory_bytes=SIZE)
    await whole(tiers)
    await put(tiers, B)
    await put(tiers, C, write_back=True)
    await tiers.uploaded()
    tiers.pin(frozenset([A]))
    disk = next(s for s in tiers.stats()[0] if s.tier == "disk")
    on_disk = sum(p.stat().st_size for p in tmp_path.glob("cache/**/*.arrow"))
    assert (disk.num_chunks, disk.num_bytes, disk.capacity_bytes, disk.pinned_bytes) == (
        3,
        on_disk,
        10 * SIZE,
        SIZE,
    )
    objects = tiers.object_stats()
    assert objects is not None
    assert (objects.num_chunks, objects.num_bytes) == (3, sum(map(len, stored.data.values())))
