"""A node brings chunks from the object store while their readers read them already."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

import pytest

from services.kv_store.fetching.config import FetchConfig
from services.kv_store.tiers.chunk_names import blob_of
from shared.errors import KvquiltError, NotFound, Unavailable
from shared.kv_types import OpenedChunk
from tests.dict_blobs import DictBlobs
from tests.faulty_blobs import FailingBlobs, HangingBlobs, HookedBlobs, TruncatedBlobs
from tests.kv_chunks import chunk_bytes, newer_chunk_bytes
from tests.unit.kv_store.large_chunks import (
    NUM_LAYERS,
    SIZE,
    A,
    B,
    Make,
    bytes_in,
    counter,
    large,
    nobody,
    open_one,
    put,
    read_layers,
    whole,
)


async def test_a_chunk_is_fetched_once_for_all_who_ask_and_read_while_it_arrives(
    make: Make, stored: DictBlobs
) -> None:
    calls: Counter[str] = Counter()
    may_send = threading.Event()

    def hook(method: str, name: str) -> None:
        calls[method] += 1
        if calls["read_to"] > 3:
            assert may_send.wait(30)

    tiers = make(HookedBlobs(stored, hook))
    opened = await asyncio.gather(*(open_one(tiers) for _ in range(8)))
    assert len({o.path for o in opened}) == 1
    assert all(o.exists and o.progress and o.tier == "disk" for o in opened)
    reading = [asyncio.create_task(asyncio.to_thread(read_layers, o)) for o in opened[:2]]
    may_send.set()
    assert await asyncio.gather(*reading) == [True, True]
    assert await whole(tiers) == large(A)
    assert calls["stat"] == 0  # the answer with the end tells the size
    assert (
        counter(tiers, "object_fetches"),
        counter(tiers, "object_bytes"),
        counter(tiers, "coalesced"),
    ) == (1, SIZE, 7)
    assert (await open_one(tiers)).progress == ""
    assert bytes_in(tiers) == {"disk": SIZE, "pending": 0}


async def test_a_reader_who_comes_after_the_chunk_has_arrived_finds_what_it_was_told(
    make: Make, stored: DictBlobs
) -> None:
    tiers = make(stored)
    opened = await open_one(tiers)
    assert opened.progress
    assert await tiers.fetched(A, nobody())
    assert not Path((await open_one(tiers)).path).samefile(opened.progress)
    assert await asyncio.to_thread(read_layers, opened)
    await tiers.delete(A)
    assert await asyncio.to_thread(read_layers, opened)


async def test_a_fetch_goes_on_when_its_first_asker_goes_away(make: Make, stored: DictBlobs) -> None:
    started, may_send = threading.Event(), threading.Event()

    def hook(method: str, name: str) -> None:
        started.set()
        assert may_send.wait(30)

    tiers = make(HookedBlobs(stored, hook))
    impatient = asyncio.create_task(open_one(tiers))
    await asyncio.to_thread(started.wait)
    impatient.cancel()
    may_send.set()
    assert await whole(tiers) == large(A)
    assert counter(tiers, "object_fetches") == 1


async def test_a_small_chunk_comes_with_its_end(make: Make, stored: DictBlobs) -> None:
    stored.put(blob_of(B), chunk_bytes(B))
    tiers = make(stored)
    opened = await open_one(tiers, B)
    assert (opened.exists, opened.progress) == (True, "")
    assert Path(opened.path).read_bytes() == chunk_bytes(B)


async def test_prefetched_chunks_are_there_when_they_are_opened(make: Make, stored: DictBlobs) -> None:
    tiers = make(stored)
    tiers.prefetch([A, B, A], nobody())
    assert await tiers.fetched(A, nobody())
    assert not await tiers.fetched(B, nobody())
    assert (await open_one(tiers)).progress == ""
    assert (counter(tiers, "prefetches"), counter(tiers, "disk_hits"), counter(tiers, "object_fetches")) == (
        2,
        1,
        1,
    )


@pytest.mark.parametrize("failure", [Unavailable("down"), KvquiltError("refused"), NotFound("gone")])
async def test_whatever_the_object_store_does_the_chunk_is_merely_absent(
    make: Make, stored: DictBlobs, failure: KvquiltError
) -> None:
    objects = FailingBlobs(stored, failure)
    tiers = make(objects)
    assert await open_one(tiers) == OpenedChunk(A, exists=False)
    objects.failure = None
    assert await whole(tiers) == large(A)


async def test_an_object_store_that_hangs_is_not_waited_for(make: Make, stored: DictBlobs) -> None:
    may_answer = threading.Event()
    tiers = make(HookedBlobs(stored, lambda *_: may_answer.wait(30)), fetch=FetchConfig(timeout_s=0.05))
    assert not (await open_one(tiers)).exists
    may_answer.set()


async def test_one_that_hangs_in_the_middle_fails_its_readers_and_leaves_nothing(
    make: Make, stored: DictBlobs
) -> None:
    objects = HangingBlobs(stored)
    tiers = make(objects, fetch=FetchConfig(concurrency=2, part_bytes=40_000, timeout_s=0.2))
    opened = await open_one(tiers)
    assert opened.progress
    with pytest.raises(Unavailable):
        await asyncio.to_thread(read_layers, opened)
    objects.may_answer.set()
    assert not await tiers.fetched(A, nobody()) or await whole(tiers) == large(A)


async def test_a_part_that_fails_once_is_asked_for_again(make: Make, stored: DictBlobs) -> None:
    calls: Counter[str] = Counter()

    def hook(method: str, name: str) -> None:
        calls[method] += 1
        if method == "read_to" and calls[method] % 2:
            raise Unavailable("overloaded")

    tiers = make(HookedBlobs(stored, hook), fetch=FetchConfig(concurrency=1, part_bytes=40_000))
    assert await whole(tiers) == large(A)
    assert calls["read_to"] == 2 * (1 + NUM_LAYERS)  # the end, and parts of a layer each


@pytest.mark.parametrize("keep_bytes", [0, 1000, 20_000])
async def test_truncated_bodies_make_a_chunk_absent(make: Make, stored: DictBlobs, keep_bytes: int) -> None:
    tiers = make(TruncatedBlobs(stored, keep_bytes))
    await open_one(tiers)
    assert not await tiers.fetched(A, nobody())
    assert bytes_in(tiers) == {"disk": 0, "pending": 0}


@pytest.mark.parametrize("at", [100, SIZE // 2, SIZE - 60])
async def test_a_damaged_object_is_not_given_out_and_the_next_put_replaces_it(
    make: Make, stored: DictBlobs, at: int
) -> None:
    data = bytearray(large(A))
    data[at] ^= 1
    stored.put(blob_of(A), bytes(data))
    tiers = make(stored)
    assert not await tiers.fetched(A, nobody())
    assert counter(tiers, "damaged_objects") == 1
    assert await put(tiers) is False
    assert stored.data[blob_of(A)] == large(A)
    assert await put(tiers) is True


async def test_a_newer_object_is_neither_read_nor_replaced(make: Make, stored: DictBlobs) -> None:
    stored.put(blob_of(A), newer_chunk_bytes(A))
    tiers = make(stored)
    assert not (await open_one(tiers)).exists
    for replace in (False, True):
        assert await put(tiers, replace=replace) is True
    assert stored.data[blob_of(A)] == newer_chunk_bytes(A)


async def test_a_newer_file_here_is_neither_read_nor_replaced(make: Make, stored: DictBlobs) -> None:
    tiers = make(stored)
    await put(tiers, B, write_back=True)
    await tiers.uploaded()
    path = tiers.disk.path_of(B)
    path.write_bytes(newer_chunk_bytes(B))
    stored.delete(blob_of(B))
    assert not (await open_one(tiers, B)).exists
    assert path.read_bytes() == newer_chunk_bytes(B)
    path.unlink()
    await open_one(tiers, B)


async def test_a_chunk_deleted_while_it_arrives_does_not_come_back(make: Make, stored: DictBlobs) -> None:
    objects = HangingBlobs(stored)
    tiers = make(objects)
    opened = await open_one(tiers)
    await tiers.delete(A)
    await tiers.delete_object(A)
    objects.may_answer.set()
    with pytest.raises((Unavailable, NotFound)):
        await asyncio.to_thread(read_layers, opened)
    assert not (await open_one(tiers)).exists
    assert bytes_in(tiers) == {"disk": 0, "pending": 0}
