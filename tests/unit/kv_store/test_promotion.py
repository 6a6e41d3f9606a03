"""Which chunks are copied to memory, and when they are not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from services.kv_store.tiers.chunk_files import verified
from services.kv_store.tiers.local import LocalTier
from services.kv_store.tiers.promotion import Promotion
from tests.kv_chunks import chunk_bytes, chunk_id_of
from tests.unit.kv_store.disks import QuickDisk

A, B = chunk_id_of(0), chunk_id_of(1)
SIZE = len(chunk_bytes(A))


def keep(tier: LocalTier, chunk_id: str, seed: int = 0) -> None:
    staged = tier.staging.new()
    staged.write_bytes(chunk_bytes(chunk_id, seed))
    assert tier.keep(chunk_id, staged, verified(staged, chunk_id))


class World:
    """A disk that holds A and B, and memory with room for one of them."""

    def __init__(self, directory: Path, threads: Executor) -> None:
        self.disk = LocalTier("disk", directory / "disk", disk=QuickDisk())
        self.memory = LocalTier("memory", directory / "memory", disk=QuickDisk(), capacity_bytes=SIZE)
        self.counters: Counter[str] = Counter()
        self.promotion = Promotion(self.disk, self.memory, self.counters, threads)
        for chunk_id in (A, B):
            keep(self.disk, chunk_id)

    async def use(self, chunk_id: str, times: int = 1) -> None:
        for _ in range(times):
            self.promotion.used(chunk_id, "acme")
        await self.promotion.idle()

    def in_memory(self) -> dict[str, int]:
        """And how many were ever brought there."""
        assert not list(self.memory.staging.directory.iterdir())
        self.memory.check_invariants()
        return {c.chunk_id: self.counters["promotions"] for c in self.memory.copies()}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ThreadPoolExecutor(1) as threads:
        yield World(tmp_path, threads)


async def test_the_second_use_brings_a_chunk_to_memory_and_the_first_does_not(world: World) -> None:
    await world.use(A)
    assert world.in_memory() == {}
    await world.use(A)
    assert world.in_memory() == {A: 1}


async def test_it_is_brought_once_however_often_it_is_used(world: World) -> None:
    await world.use(A, times=5)
    await world.use(A)
    assert world.in_memory() == {A: 1}


async def test_where_memory_has_no_room_a_chunk_stays_on_the_disk(world: World) -> None:
    await world.use(A, times=2)
    world.memory.lease(A)
    await world.use(B, times=2)
    assert world.in_memory() == {A: 1}
    world.memory.remove(A)
    await world.use(B)
    assert world.in_memory() == {B: 2}, "the room that was reserved in vain is free again"


async def test_what_was_replaced_while_it_was_copied_is_not_kept(tmp_path: Path) -> None:
    class Replacing(Executor):
        """Does its work while somebody replaces the chunk."""

        def submit(self, work, /, *args, **options):  # type: ignore[no-untyped-def]
            stage = world.memory.staging.copy_of

            def copy_of(path: Path) -> Path:
                staged = stage(path)
                keep(world.disk, A, seed=1)
                return staged

            world.memory.staging.copy_of = copy_of  # type: ignore[method-assign]
            done: Future[object] = Future()
            done.set_result(work(*args, **options))
            return done

    world = World(tmp_path, Replacing())
    await world.use(A, times=2)
    assert world.in_memory() == {}


async def test_the_end_does_not_wait_for_copies_that_have_not_begun(tmp_path: Path) -> None:
    class Busy(Executor):
        def submit(self, *_args: object, **_options: object) -> Future[object]:  # type: ignore[override]
            return Future()

    promotion = World(tmp_path, Busy()).promotion
    for _ in range(2):
        promotion.used(A, "acme")
    await asyncio.sleep(0)
    await asyncio.wait_for(promotion.close(), 5)
