"""What garbage is, and that nothing else is ever collected."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from services.kv_store.blobs.protocol import BlobStat
from services.kv_store.upkeep.garbage import collect, keeper_now_s, young
from shared.errors import DeadlineExceeded, InvalidRequest, Unavailable
from shared.kv_reports import CollectedGarbage
from shared.kv_types import ChunkPage, ChunkStat, DeletedChunks
from shared.request import RequestContext
from tests.dict_blobs import DictBlobs
from tests.kv_chunks import chunk_id_of

CTX = RequestContext.create(deadline_ms=36_000_000)
A, B, C, D = (chunk_id_of(n) for n in range(4))


class Store:
    """A node's chunks, small pages, references that may change while garbage is collected."""

    def __init__(self, *chunk_ids: str) -> None:
        self.chunks = {c: ChunkStat(c, True, 10, modified_s=0.0) for c in chunk_ids}
        self.references: Counter[str] = Counter()
        self.read: set[str] = set()
        self.late_references: set[str] = set()
        self.unreachable = False
        self.clock_s = 100.0

    async def now_s(self) -> float:
        return self.clock_s

    async def list_page(self, ctx: RequestContext, start_after: str = "") -> ChunkPage:
        rest = [self.chunks[c] for c in sorted(self.chunks) if c > start_after]
        return ChunkPage(tuple(rest[:2]), len(rest) > 2)

    async def needed(self, ctx: RequestContext, chunk_ids: Sequence[str], grace_s: float) -> Collection[str]:
        if self.unreachable:
            raise Unavailable("a node does not answer")
        self.references.update(self.late_references)
        return self.read & set(chunk_ids)

    async def delete(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> DeletedChunks:
        kept = tuple(c for c in chunk_ids if self.references[c])
        gone = tuple(c for c in chunk_ids if c not in kept and self.chunks.pop(c, None))
        return DeletedChunks(gone, kept)

    async def collect(self, grace_s: float = 50.0, dry_run: bool = False) -> CollectedGarbage:
        return await collect(CTX, self, lambda c: self.references[c], grace_s, dry_run)


@pytest.mark.parametrize("grace_s", [-1.0, float("nan"), float("inf")])
async def test_a_grace_that_is_no_span_of_time_is_refused(grace_s: float) -> None:
    store = Store(A)
    with pytest.raises(InvalidRequest, match="grace_s"):
        await store.collect(grace_s)
    assert store.chunks


async def test_what_nothing_refers_to_goes_and_everything_else_stays() -> None:
    store = Store(A, B, C, D)
    store.references[A] = 1
    assert await store.collect() == CollectedGarbage(3, 30, 0)
    assert store.chunks.keys() == {A}
    assert await store.collect() == CollectedGarbage(0, 0, 0)


async def test_young_chunks_and_chunks_being_read_are_kept_and_counted() -> None:
    store = Store(A, B, C)
    store.chunks[A] = ChunkStat(A, True, 10, modified_s=60.0)
    store.read.add(B)
    assert await store.collect() == CollectedGarbage(1, 10, 2)
    assert store.chunks.keys() == {A, B}


async def test_a_dry_run_says_the_same_and_removes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    store = Store(A, B, C)
    store.references[A] = 1
    assert await store.collect(dry_run=True) == CollectedGarbage(2, 20, 0)
    assert len(store.chunks) == 3
    assert "2 chunks of 20 bytes would go" in caplog.text
    await store.collect()
    assert "2 chunks of 20 bytes are gone" in caplog.text


async def test_a_document_that_comes_while_garbage_is_collected_keeps_its_chunks() -> None:
    store = Store(A, B)
    store.late_references.add(A)
    assert await store.collect() == CollectedGarbage(1, 10, 0)
    assert store.chunks.keys() == {A}


async def test_nothing_is_removed_while_a_node_cannot_say_what_it_reads() -> None:
    store = Store(A, B)
    store.unreachable = True
    with pytest.raises(Unavailable):
        await store.collect()
    assert len(store.chunks) == 2


async def test_nothing_is_collected_for_somebody_whose_time_is_over() -> None:
    store = Store(A)
    with pytest.raises(DeadlineExceeded):
        await collect(replace(CTX, deadline_s=0.0), store, lambda _: 0, 50.0, dry_run=False)
    assert store.chunks.keys() == {A}


@pytest.mark.parametrize("jump_s", [-1e9, 1e9])
async def test_a_clock_that_jumps_never_endangers_what_is_needed(jump_s: float) -> None:
    store = Store(A, B, C)
    store.references[A], store.clock_s = 1, 100.0 + jump_s
    store.read.add(B)
    await store.collect()
    assert {A, B} <= store.chunks.keys()


async def test_many_chunks_are_collected_page_by_page() -> None:
    ids = [chunk_id_of(n) for n in range(60)]
    store, rng = Store(*ids), random.Random(1)
    needed = set(rng.sample(ids, 20))
    store.references.update(needed)
    assert (await store.collect()).num_chunks == 40
    assert store.chunks.keys() == needed


class Keeper(DictBlobs):
    """Whose clock is not ours."""

    now_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.times: dict[str, float] = {}

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data)
        self.times[name] = self.now_s

    def stat(self, name: str) -> BlobStat | None:
        found = super().stat(name)
        return found and replace(found, modified_s=self.times[name])


def test_age_is_by_the_keepers_own_clock() -> None:
    blobs = Keeper()
    blobs.now_s = 5.0
    blobs.put("x", b"")
    blobs.now_s = 7.0
    now_s = keeper_now_s(blobs)
    assert now_s == 7.0
    assert young([("x", 5.0), ("y", 6.5), ("z", 99.0)], now_s, grace_s=1.0) == {"y", "z"}


def test_everything_is_young_where_the_keepers_clock_cannot_be_read() -> None:
    class Forgetful(DictBlobs):
        def stat(self, name: str) -> BlobStat | None:
            return None

    assert keeper_now_s(Forgetful()) == 0.0


async def test_an_empty_page_is_the_last_one_whatever_it_says() -> None:
    class Endless(Store):
        num_pages = 0

        async def list_page(self, ctx: RequestContext, start_after: str = "") -> ChunkPage:
            self.num_pages += 1
            assert self.num_pages == 1
            return ChunkPage((), truncated=True)

    assert await Endless().collect() == CollectedGarbage(0, 0, 0)
