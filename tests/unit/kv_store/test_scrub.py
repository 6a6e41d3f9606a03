"""Scrubbing a node and a cluster: what is damaged is found, replaced from good copies, and missed when there
are none."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

import pytest

from services.kv_store.upkeep.scrub import Copy, Scrub, scrub_cluster
from shared.errors import CorruptData, FailedPrecondition, NotFound, Unavailable
from shared.kv_reports import DamagedCopy, VerifyProgress
from shared.request import RequestContext
from tests.kv_chunks import chunk_id_of

CTX = RequestContext.create(deadline_ms=36_000_000)
A, B, C = (chunk_id_of(n) for n in range(3))
HEARD: list[str] = []


@dataclass
class Node:
    """Copies by tier and chunk: "good", "bad", or "newer" for one that a newer program wrote. ``elsewhere``:
    chunks of which other nodes have good copies."""

    disk: dict[str, str] = field(default_factory=dict)
    memory: dict[str, str] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)
    failure: Exception | None = None
    tiers: Sequence[str] = ("memory", "disk")
    unsealed: set[tuple[str, str]] = field(default_factory=set)

    def all(self) -> Iterator[Copy]:
        for tier in self.tiers:
            for chunk_id in list(self._states(tier)):
                yield Copy(chunk_id, tier, 10)

    async def verify_copy(self, chunk_id: str, tier: str) -> int:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        match self._states(tier).get(chunk_id):
            case None:
                raise NotFound("gone")
            case "bad":
                raise CorruptData("flipped")
            case "newer":
                raise FailedPrecondition("format version 9")
        return 10

    async def restore(self, chunk_id: str) -> bool:
        states = [self._states(tier) for tier in self.tiers]
        good = chunk_id in self.elsewhere or any(s.get(chunk_id) == "good" for s in states)
        if good and not any(chunk_id in s for s in states):
            self.disk[chunk_id] = "good"
        for s in states:
            if good and s.get(chunk_id) == "bad":
                s[chunk_id] = "good"
        return good

    async def seal(self, chunk_id: str) -> bool:
        if any(self._states(tier).get(chunk_id) == "bad" for tier in self.tiers):
            raise Unavailable("nobody has a good copy")
        return True

    async def remove_copy(self, chunk_id: str, tier: str) -> bool:
        return self._states(tier).pop(chunk_id, None) is not None

    def _states(self, tier: str) -> dict[str, str]:
        return self.disk if tier == "disk" else self.memory


async def run(scrub: Scrub) -> tuple[VerifyProgress, list[DamagedCopy]]:
    """The last message, and all damage."""
    async with aclosing(scrub.run(CTX)) as progress:
        messages = [p async for p in progress]
    assert [m.num_copies for m in messages] == sorted(m.num_copies for m in messages)
    return messages[-1], [d for m in messages for d in m.damaged]


async def test_every_copy_in_every_tier_is_read_and_counted() -> None:
    last, damaged = await run(Scrub("n", Node({A: "good", B: "good"}, {A: "good"}), repair=False))
    assert (last, damaged) == (VerifyProgress(3, 30), [])


async def test_damage_is_told_and_left_alone_without_repair() -> None:
    node = Node({A: "good", B: "bad"}, {A: "bad"}, elsewhere={A, B})
    last, damaged = await run(Scrub("n", node, repair=False))
    assert damaged == [DamagedCopy(A, "n", "memory", "flipped"), DamagedCopy(B, "n", "disk", "flipped")]
    assert last.missing_chunk_ids == (B,)
    assert (node.memory, node.disk) == ({A: "bad"}, {A: "good", B: "bad"})


async def test_a_damaged_copy_is_replaced_where_there_is_a_good_one_and_removed_where_there_is_none() -> None:
    node = Node({A: "bad", B: "bad", C: "good"}, {C: "bad"}, elsewhere={A})
    last, damaged = await run(Scrub("n", node, repair=True))
    assert {(d.chunk_id, d.restored) for d in damaged} == {(A, True), (B, False), (C, True)}
    assert (node.disk, node.memory) == ({A: "good", C: "good"}, {C: "good"})
    assert last.missing_chunk_ids == (B,)


async def test_what_a_newer_program_wrote_is_neither_damaged_nor_touched() -> None:
    node = Node({A: "newer"})
    last, damaged = await run(Scrub("n", node, repair=True))
    assert (last, damaged) == (VerifyProgress(1, 10), [])
    assert node.disk == {A: "newer"}


async def test_a_copy_that_goes_away_meanwhile_is_not_damaged() -> None:
    class Leaving(Node):
        async def verify_copy(self, chunk_id: str, tier: str) -> int:
            self.disk.clear()
            return await super().verify_copy(chunk_id, tier)

    last, damaged = await run(Scrub("n", Leaving({A: "good"}), repair=True))
    assert (last, damaged) == (VerifyProgress(0, 0), [])


async def test_a_copy_that_is_replaced_by_a_good_one_meanwhile_stays() -> None:
    class Healing(Node):
        async def restore(self, chunk_id: str) -> bool:
            self.disk[chunk_id] = "good"
            raise Unavailable("somebody else was faster")

    node = Healing({A: "bad"})
    last, damaged = await run(Scrub("n", node, repair=True))
    assert [d.restored for d in damaged] == [False]
    assert (node.disk, last.missing_chunk_ids) == ({A: "good"}, ())


async def test_a_keeper_that_is_down_ends_the_scrub_with_its_error() -> None:
    with pytest.raises(Unavailable):
        await run(Scrub("n", Node({A: "good"}, failure=Unavailable("down")), repair=True))


async def cluster(
    nodes: dict[str, Node], referenced: Collection[str], repair: bool = False
) -> tuple[VerifyProgress, list[DamagedCopy]]:
    """The first node is home."""
    home, *others = nodes

    async def stored(chunk_ids: Sequence[str]) -> dict[str, Collection[str]]:
        return {name: [c for c in chunk_ids if c in node.disk] for name, node in nodes.items()}

    peers = {name: partial(Scrub(name, nodes[name], repair).run, CTX) for name in others}
    messages: list[VerifyProgress] = []
    async with aclosing(
        scrub_cluster(CTX, Scrub(home, nodes[home], repair), peers, lambda: referenced, stored)
    ) as progress:
        async for message in progress:
            messages.append(message)
            HEARD.extend(d.chunk_id for d in message.damaged)
    assert [m.num_copies for m in messages] == sorted(m.num_copies for m in messages)
    assert not any(m.missing_chunk_ids for m in messages[:-1])
    return messages[-1], [d for m in messages for d in m.damaged]


async def test_a_chunk_is_missing_when_no_node_has_a_good_copy_and_a_document_needs_it() -> None:
    nodes = {"home": Node({A: "bad", B: "bad"}), "other": Node({A: "good", B: "bad", C: "bad"})}
    last, damaged = await cluster(nodes, referenced=[A, B, chunk_id_of(9)])
    assert set(last.missing_chunk_ids) == {B, chunk_id_of(9)}  # of C, nobody needs it
    assert {(d.node_id, d.chunk_id) for d in damaged} == {
        ("home", A),
        ("home", B),
        ("other", B),
        ("other", C),
    }
    assert (last.num_copies, last.num_bytes) == (5, 50)


async def test_after_a_repair_only_what_was_lost_everywhere_is_missing() -> None:
    nodes = {"home": Node({A: "bad", B: "bad"}, elsewhere={A}), "other": Node({A: "good", B: "bad"})}
    last, _ = await cluster(nodes, [A, B], repair=True)
    assert last.missing_chunk_ids == (B,)
    assert (nodes["home"].disk, nodes["other"].disk) == ({A: "good"}, {A: "good"})


async def test_what_is_not_where_it_must_be_is_brought_there_from_whoever_has_it() -> None:
    nodes = {"home": Node(elsewhere={A}), "other": Node()}
    last, _ = await cluster(nodes, [A, B], repair=True)
    assert last.missing_chunk_ids == (B,)
    assert nodes["home"].disk == {A: "good"}
    last, _ = await cluster({"home": Node(elsewhere={A})}, [A], repair=False)
    assert last.missing_chunk_ids == (A,)


async def test_a_node_that_does_not_answer_is_an_error_after_the_others_were_heard() -> None:
    HEARD.clear()
    with pytest.raises(Unavailable):
        await cluster(
            {
                "home": Node(),
                "down": Node({A: "good"}, failure=Unavailable("down")),
                "other": Node({B: "bad"}),
            },
            [],
        )
    assert HEARD == [B]


async def test_copies_without_a_seal_are_counted_by_chunk_and_sealed_where_that_is_asked_for() -> None:
    node = Node({A: "good", B: "good", C: "bad"}, {A: "good"})
    node.unsealed = {(A, "disk"), (A, "memory"), (C, "disk")}
    counted, _ = await run(Scrub("n", node, repair=False))
    assert (counted.num_unsealed, counted.num_sealed) == (2, 0)
    sealing, _ = await run(Scrub("n", node, repair=False, seal=True))
    assert (sealing.num_unsealed, sealing.num_sealed) == (1, 1)
