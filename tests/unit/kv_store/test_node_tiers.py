from __future__ import annotations

import asyncio
import functools
import os
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from services.kv_store.blobs.protocol import Blobs, Link
from services.kv_store.fetching.fetch import FetchConfig
from services.kv_store.fetching.flight import FlightReader
from services.kv_store.fetching.nodes import Neighbours
from services.kv_store.fetching.sources import PeerSearch
from services.kv_store.node.chunks import NodeTiers
from services.kv_store.node.copies import NodeCopies
from services.kv_store.tiers.chunk_names import blob_of
from services.kv_store.upkeep.scrub import Copy
from shared.errors import CorruptData, KvquiltError, NotFound, StorageFull, Unavailable
from shared.kv_format import ChunkFile, verify_chunk, write_chunk
from shared.kv_types import OpenedChunk, RemoteFile
from shared.request import RequestContext
from tests.dict_blobs import DictBlobs
from tests.faulty_blobs import FailingBlobs, HookedBlobs, TruncatedBlobs
from tests.kv_chunks import chunk_bytes, chunk_id_of, header_of, kv_of, newer_chunk_bytes
from tests.kv_stores import KnownNodes, tiers_in
from tests.unit.kv_store.disks import QuickDisk

A, B, C = (chunk_id_of(n) for n in range(3))
NUM_LAYERS = 4
SMALL_PARTS = FetchConfig(concurrency=3, part_bytes=40_000, timeout_s=5)
Make = Callable[..., NodeTiers]


@functools.cache
def large(chunk_id: str, seed: int = 0) -> bytes:
    """Of several parts."""
    with tempfile.TemporaryDirectory() as directory:
        header = header_of(layers=NUM_LAYERS, heads=2, tokens=100, head_dim=64, chunk_id=chunk_id)
        write_chunk(Path(directory) / "c", header, *kv_of(header, seed))
        return (Path(directory) / "c").read_bytes()


SIZE = len(large(A))


@pytest.fixture
def stored() -> DictBlobs:
    """What is in the object store: A, large."""
    blobs = DictBlobs()
    blobs.put(blob_of(A), large(A))
    return blobs


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[NodeTiers] = []

    def make(objects: Blobs | None, **settings: object) -> NodeTiers:
        fetch = settings.pop("fetch", SMALL_PARTS)
        disk = settings.pop("disk", None) or QuickDisk()
        made.append(tiers_in(tmp_path, disk, objects, fetch=fetch, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for tiers in made:
        await tiers.close()
    made[-1].check_invariants()
    assert not [p for p in (tmp_path / "staging").iterdir() if p.name.startswith("put-")]


def copies_of(tiers: NodeTiers) -> NodeCopies:
    return NodeCopies(tiers, lambda chunk_id: nobody(), with_objects=False)


def nobody() -> PeerSearch:
    return PeerSearch(Neighbours("here", KnownNodes()), RequestContext.create(), [], FlightReader())


async def open_one(tiers: NodeTiers, chunk_id: str = A) -> OpenedChunk:
    return (await tiers.open([chunk_id], nobody()))[0]


async def put(
    tiers: NodeTiers, chunk_id: str = A, seed: int = 0, *, replace: bool = False, write_back: bool = False
) -> bool:
    staged = tiers.disk.staging.new()
    staged.write_bytes(large(chunk_id, seed))
    existed = await tiers.put(chunk_id, staged, replace, write_back)
    assert not staged.exists()
    return existed


async def whole(tiers: NodeTiers, chunk_id: str = A) -> bytes:
    """The file once it has arrived."""
    await tiers.fetched(chunk_id, nobody())
    return Path((await open_one(tiers, chunk_id)).path).read_bytes()


def bytes_in(tiers: NodeTiers) -> dict[str, int]:
    return {s.tier: s.num_bytes for s in tiers.stats()[0]}


def counter(tiers: NodeTiers, name: str) -> int:
    return tiers.stats()[1].get(name, 0)


def read_layers(opened: OpenedChunk) -> bool:
    """Reads every layer as the engine does, waiting for those that have not arrived."""
    with ChunkFile.open(opened.path, opened.layers, A, opened.progress) as file:
        header = file.header
        for layer in range(header.num_layers):
            file.read_layer(
                layer,
                *(np.empty((header.num_kv_heads, *b.shape), f"u{b.item_bytes}") for b in header.buffers),
            )
    return True


# ---- fetching


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
    may_answer = threading.Event()
    num_reads = 0

    def hook(method: str, name: str) -> None:
        nonlocal num_reads
        num_reads += method == "read_to"
        if num_reads > 2:
            may_answer.wait(30)

    tiers = make(
        HookedBlobs(stored, hook), fetch=FetchConfig(concurrency=2, part_bytes=40_000, timeout_s=0.2)
    )
    opened = await open_one(tiers)
    assert opened.progress
    with pytest.raises(Unavailable):
        await asyncio.to_thread(read_layers, opened)
    may_answer.set()
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
    may_send = threading.Event()
    num_reads = 0

    def hook(method: str, name: str) -> None:
        nonlocal num_reads
        num_reads += method == "read_to"
        if method == "read_to" and num_reads > 2:
            may_send.wait(30)

    tiers = make(HookedBlobs(stored, hook))
    opened = await open_one(tiers)
    await tiers.delete(A)
    await tiers.delete_object(A)
    may_send.set()
    with pytest.raises((Unavailable, NotFound)):
        await asyncio.to_thread(read_layers, opened)
    assert not (await open_one(tiers)).exists
    assert bytes_in(tiers) == {"disk": 0, "pending": 0}


# ---- room


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
    may_send = threading.Event()
    num_reads = 0

    def hook(method: str, name: str) -> None:
        nonlocal num_reads
        num_reads += method == "read_to"
        if method == "read_to" and num_reads > 2:
            may_send.wait(30)

    tiers = make(HookedBlobs(stored, hook), capacity_bytes=SIZE)
    opened = await open_one(tiers)
    tiers.disk.capacity_bytes = SIZE - 1
    reading = asyncio.create_task(asyncio.to_thread(read_layers, opened))
    may_send.set()
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


# ---- writing


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


# ---- every copy


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


class LinkedBlobs(DictBlobs):
    def link(self, name: str) -> Link:
        return Link(f"https://server/{name}?signature=s", "/ca.pem")


@pytest.fixture
def linked(stored: DictBlobs) -> LinkedBlobs:
    """As ``stored``; others can read there, too."""
    blobs = LinkedBlobs()
    blobs.data = stored.data
    return blobs


async def test_a_first_miss_is_read_from_the_object_store_and_the_second_copied(
    make: Make, linked: LinkedBlobs
) -> None:
    tiers = make(linked)
    (opened,) = await tiers.open([A], nobody(), direct=True)
    assert opened.remote == RemoteFile(f"https://server/{blob_of(A)}?signature=s", "/ca.pem")
    assert (opened.path, opened.tier) == ("", "objects")
    assert "signature" not in repr(opened)
    assert tiers.find(A) is None
    assert tiers.counters["direct_opens"] == 1
    assert tiers.leased(A), "the object is not collected meanwhile"

    (opened,) = await tiers.open([A], nobody(), direct=True)
    assert opened.remote is None
    assert opened.path
    assert await tiers.fetched(A, nobody())
    (opened,) = await tiers.open([A], nobody(), direct=True)
    assert (opened.tier, opened.progress) == ("disk", "")
    assert tiers.counters["direct_opens"] == 1


async def test_who_needs_a_file_gets_one_at_the_first_miss(make: Make, linked: LinkedBlobs) -> None:
    tiers = make(linked)
    (opened,) = await tiers.open([A], nobody())
    assert opened.remote is None
    assert opened.path


async def test_misses_before_a_copy_are_a_setting(make: Make, linked: LinkedBlobs) -> None:
    tiers = make(linked, fetch=FetchConfig(part_bytes=40_000, copy_from_miss=3))
    opened = [(await tiers.open([A], nobody(), direct=True))[0] for _ in range(3)]
    assert [o.remote is not None for o in opened] == [True, True, False]
    with pytest.raises(ValueError, match="copy_from_miss"):
        FetchConfig(copy_from_miss=0)


async def test_what_is_on_its_way_damaged_or_near_is_not_read_from_the_object_store(
    make: Make, linked: LinkedBlobs
) -> None:
    linked.put(blob_of(B), large(B)[:-1])
    tiers = make(linked)
    tiers.prefetch([A], nobody())
    (opened,) = await tiers.open([B], nobody())
    assert not opened.exists
    opened_now = await tiers.open([A, B], nobody(), direct=True)
    assert [o.remote for o in opened_now] == [None, None]
    near = make(linked, prefer_peers=True)
    assert (await near.open([A], nobody(), direct=True))[0].remote is None


async def test_what_its_reader_will_receive_itself_is_not_brought_before(
    make: Make, linked: LinkedBlobs
) -> None:
    tiers = make(linked)
    tiers.prefetch([A], nobody(), direct=True)
    (opened,) = await tiers.open([A], nobody(), direct=True)
    assert opened.remote is not None
    tiers.prefetch([A], nobody(), direct=True)  # the next miss copies
    assert await tiers.fetched(A, nobody())
    assert (tiers.counters["direct_opens"], tiers.counters["prefetches"]) == (1, 1)
