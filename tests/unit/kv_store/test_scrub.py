"""Scrubbing a node and a cluster: what is damaged is found, replaced from good copies, and missed when there are none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.kv_store.object_copies import ObjectCopies
from services.kv_store.scrub import Copy, Scrub, scrub_cluster
from shared.errors import CorruptData, FailedPrecondition, NotFound, Unavailable
from shared.kv_types import DamagedCopy, VerifyProgress
from shared.request import RequestContext
from tests.kv_chunks import chunk_bytes, chunk_id_of
from tests.memory_blobs import MemoryBlobs

CTX = RequestContext.create()
A, B, C = (chunk_id_of(n) for n in range(3))


@dataclass
class Tier:
    """Copies by name: "good", "bad", or "newer" for one that a newer program wrote. ``elsewhere``: chunks to restore from."""

    name: str
    states: dict[str, str] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)
    failure: Exception | None = None

    def all(self) -> Iterator[Copy]:
        for chunk_id in list(self.states):
            yield Copy(self.name, chunk_id, 10)

    def of(self, chunk_id: str) -> Sequence[Copy]:
        return [Copy(self.name, chunk_id, 10)] if chunk_id in self.states else []

    def verify(self, copy: Copy) -> None:
        if self.failure is not None:
            raise self.failure
        match self.states.get(copy.chunk_id):
            case None:
                raise NotFound("gone")
            case "bad":
                raise CorruptData("flipped")
            case "newer":
                raise FailedPrecondition("format version 9")

    def remove_damaged(self, copy: Copy) -> bool:
        return self.states.get(copy.chunk_id) == "bad" and bool(self.states.pop(copy.chunk_id))

    async def restore(self, ctx: RequestContext, copy: Copy) -> bool:
        if copy.chunk_id in self.elsewhere:
            self.states[copy.chunk_id] = "good"
        return copy.chunk_id in self.elsewhere


async def run(scrub: Scrub) -> tuple[VerifyProgress, list[DamagedCopy]]:
    """The last message, and all damage."""
    async with aclosing(scrub.run(CTX)) as progress:
        messages = [p async for p in progress]
    assert [m.num_copies for m in messages] == sorted(m.num_copies for m in messages)
    return messages[-1], [d for m in messages for d in m.damaged]


async def test_every_copy_in_every_tier_is_read_and_counted() -> None:
    tiers = [Tier("memory", {A: "good"}), Tier("disk", {A: "good", B: "good"})]
    last, damaged = await run(Scrub("n", tiers, repair=False))
    assert (last, damaged) == (VerifyProgress(3, 30), [])


async def test_damage_is_told_and_left_alone_without_repair() -> None:
    memory, disk = Tier("memory", {A: "bad"}, {A}), Tier("disk", {A: "good", B: "bad"})
    last, damaged = await run(Scrub("n", [memory, disk], repair=False))
    assert damaged == [DamagedCopy(A, "n", "memory", "flipped"), DamagedCopy(B, "n", "disk", "flipped")]
    assert last.missing == (B,)
    assert (memory.states, disk.states) == ({A: "bad"}, {A: "good", B: "bad"})


async def test_a_damaged_copy_is_removed_and_restored_where_there_is_a_good_one() -> None:
    disk = Tier("disk", {A: "bad", B: "bad", C: "good"}, elsewhere={A})
    last, damaged = await run(Scrub("n", [disk], repair=True))
    assert [(d.chunk_id, d.restored) for d in damaged] == [(A, True), (B, False)]
    assert disk.states == {A: "good", C: "good"}
    assert last.missing == (B,)


async def test_what_a_newer_program_wrote_is_neither_damaged_nor_touched() -> None:
    disk = Tier("disk", {A: "newer"})
    last, damaged = await run(Scrub("n", [disk], repair=True))
    assert (last, damaged) == (VerifyProgress(1, 10), [])
    assert disk.states == {A: "newer"}


async def test_a_copy_that_goes_away_meanwhile_is_not_damaged() -> None:
    class Leaving(Tier):
        def verify(self, copy: Copy) -> None:
            self.states.clear()
            super().verify(copy)

    last, damaged = await run(Scrub("n", [Leaving("disk", {A: "good"})], repair=True))
    assert (last, damaged) == (VerifyProgress(0, 0), [])


async def test_a_keeper_that_is_down_ends_the_scrub_with_its_error() -> None:
    with pytest.raises(Unavailable):
        await run(Scrub("n", [Tier("objects", {A: "good"}, failure=Unavailable("down"))], repair=True))


async def cluster(
    home: Tier, others: dict[str, Tier], referenced: Collection[str], repair: bool = False
) -> tuple[VerifyProgress, list[DamagedCopy]]:
    scrub = Scrub("home", [home], repair)

    async def stored(chunk_ids: Sequence[str]) -> dict[str, Collection[str]]:
        return {n: [c for c in chunk_ids if c in t.states] for n, t in {"home": home, **others}.items()}

    def peer(node_id: str, tier: Tier) -> AsyncGenerator[VerifyProgress, None]:
        return Scrub(node_id, [tier], repair).run(CTX)

    peers = {node_id: (lambda n=node_id, t=tier: peer(n, t)) for node_id, tier in others.items()}
    async with aclosing(scrub_cluster(CTX, scrub, peers, lambda: referenced, stored)) as progress:
        messages = [p async for p in progress]
    assert [m.num_copies for m in messages] == sorted(m.num_copies for m in messages)
    assert not any(m.missing for m in messages[:-1])
    return messages[-1], [d for m in messages for d in m.damaged]


async def test_a_chunk_is_missing_when_no_node_has_a_good_copy_and_a_document_needs_it() -> None:
    home, other = Tier("disk", {A: "bad", B: "bad"}), Tier("disk", {A: "good", B: "bad", C: "bad"})
    last, damaged = await cluster(home, {"other": other}, referenced=[A, B, chunk_id_of(9)])
    assert set(last.missing) == {B, chunk_id_of(9)}  # of C, nobody needs it
    assert {(d.node_id, d.chunk_id) for d in damaged} == {("home", A), ("home", B), ("other", B), ("other", C)}
    assert (last.num_copies, last.num_bytes) == (5, 50)


async def test_after_a_repair_only_what_was_lost_everywhere_is_missing() -> None:
    home = Tier("disk", {A: "bad", B: "bad"}, elsewhere={A})
    other = Tier("disk", {A: "good", B: "bad"})
    last, _ = await cluster(home, {"other": other}, [A, B], repair=True)
    assert last.missing == (B,)
    assert (home.states, other.states) == ({A: "good"}, {A: "good"})


async def test_a_node_that_does_not_answer_is_an_error_after_the_others_were_heard() -> None:
    heard: list[str] = []
    down, other = Tier("disk", {A: "good"}, failure=Unavailable("down")), Tier("disk", {B: "bad"})

    async def listen() -> None:
        scrub = Scrub("home", [Tier("disk")], repair=False)
        peers = {name: (lambda n=name, t=tier: Scrub(n, [t], False).run(CTX)) for name, tier in (("d", down), ("o", other))}

        async def stored(chunk_ids: Sequence[str]) -> dict[str, Collection[str]]:
            return {}

        async with aclosing(scrub_cluster(CTX, scrub, peers, lambda: [], stored)) as progress:
            async for p in progress:
                heard.extend(d.chunk_id for d in p.damaged)

    with pytest.raises(Unavailable):
        await listen()
    assert heard == [B]


class World:
    """An object store and one node's copies."""

    def __init__(self, staging: Path) -> None:
        self.objects, self.staging = MemoryBlobs(), staging
        self.node: dict[str, bytes] = {}

    def copies(self) -> ObjectCopies:
        return ObjectCopies(self.objects, self.staging, [self.get])

    async def get(self, chunk_id: str) -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0)
        if chunk_id not in self.node:
            raise NotFound("not here")
        data = self.node[chunk_id]
        for start in range(0, len(data), 500):
            yield data[start : start + 500]

    def put(self, chunk_id: str, data: bytes) -> None:
        self.objects.put(f"chunks/{chunk_id[:2]}/{chunk_id}.arrow", data)


def flipped(chunk_id: str, at: int = 400) -> bytes:
    data = bytearray(chunk_bytes(chunk_id))
    data[at] ^= 1
    return bytes(data)


@pytest.mark.parametrize("damage", [flipped(A), chunk_bytes(A)[:-7], chunk_bytes(B), b""])
async def test_a_damaged_object_is_put_again_from_a_nodes_good_copy(tmp_path: Path, damage: bytes) -> None:
    world = World(tmp_path)
    world.put(A, damage)
    world.put(B, chunk_bytes(B))
    world.node[A] = chunk_bytes(A)
    last, damaged = await run(Scrub("home", [world.copies()], repair=True))
    assert [(d.chunk_id, d.tier, d.restored) for d in damaged] == [(A, "objects", True)]
    assert last.missing == ()
    assert b"".join(world.objects.read(f"chunks/{A[:2]}/{A}.arrow")) == chunk_bytes(A)
    assert not list(tmp_path.iterdir())


async def test_a_damaged_object_is_never_replaced_by_another_damaged_copy(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put(A, flipped(A))
    world.node[A] = flipped(A, 410)
    last, damaged = await run(Scrub("home", [world.copies()], repair=True))
    assert [d.restored for d in damaged] == [False]
    assert last.missing == (A,)
    assert not world.objects.blobs
    assert not list(tmp_path.iterdir())


async def test_an_object_that_was_replaced_while_it_was_verified_stays(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put(A, flipped(A))
    copies = world.copies()
    (copy,) = copies.all()
    with pytest.raises(CorruptData):
        copies.verify(copy)
    world.put(A, chunk_bytes(A))
    assert copies.remove_damaged(copy) is False
    copies.verify(copy)


async def test_objects_that_are_no_chunks_are_left_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.objects.put("chunks/note.txt", b"x")
    world.objects.put("manifests/t/c/1.json", b"x")
    for n in range(5):
        world.put(chunk_id_of(n), chunk_bytes(chunk_id_of(n)))
    last, _ = await run(Scrub("home", [world.copies()], repair=True))
    assert (last.num_copies, len(world.objects.blobs)) == (5, 7)
