"""Upkeep among agents: pins against eviction and on every node, quotas, and nodes that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.kv_store.config import GarbageConfig
from services.kv_store.documents.catalog import Document
from services.kv_store.documents.items import Items
from services.kv_store.documents.quotas import QuotaConfig, Quotas
from services.kv_store.fetching.nodes import Neighbours
from services.kv_store.node.agent import Agent
from services.kv_store.node.housekeeping import Housekeeping
from services.kv_store.upkeep.upkeep import Upkeep
from shared.errors import FailedPrecondition, StorageFull, Unavailable
from shared.kv_reports import PrincipalStats, TenantStats, VerifyProgress
from shared.kv_types import ChunkPage, ChunkStat, Manifest, ManifestChunk
from shared.request import RequestContext
from tests.dict_blobs import DictBlobs
from tests.kv_chunks import chunk_bytes, chunk_id_of
from tests.kv_stores import KnownNodes, agent_on, in_pieces

IDS = [chunk_id_of(n) for n in range(12)]
A, B, C, D, E, F, G, H = IDS[:8]
SIZE = len(chunk_bytes(A))
CTX = RequestContext.create(tenant="acme", deadline_ms=36_000_000)
Make = Callable[..., Agent]


@pytest.fixture
def nodes() -> KnownNodes:
    return KnownNodes()


@pytest.fixture
async def make(tmp_path: Path, nodes: KnownNodes) -> AsyncIterator[Make]:
    """Agents with room for six chunks, on an object store that they share unless ``alone``."""
    agents: dict[str, Agent] = {}
    objects = DictBlobs()

    def made(
        node_id: str = "home",
        capacity: int = 6 * SIZE,
        quotas: QuotaConfig | None = None,
        alone: bool = False,
    ) -> Agent:
        directory = tmp_path / node_id
        agent = agent_on(
            directory,
            node_id,
            nodes,
            objects=None if alone else objects,
            capacity_bytes=capacity,
            lease_s=0.0,
            quotas=quotas,
        )
        agents[node_id] = agent
        return agent

    yield made
    for agent in agents.values():
        agent.check_invariants()
        await agent.close()


async def put(agent: Agent, *chunk_ids: str) -> None:
    for chunk_id in chunk_ids:
        await agent.put(CTX, chunk_id, SIZE, in_pieces(chunk_bytes(chunk_id)))


def document(document_id: str, *chunk_ids: str, tenant: str = "acme") -> Manifest:
    return Manifest(tenant, "books", document_id, chunks=tuple(ManifestChunk(c, (1,)) for c in chunk_ids))


async def read(agent: Agent, *chunk_ids: str) -> None:
    """One after the other: of chunks that come together, one may be evicted as soon as it is there."""
    for chunk_id in chunk_ids:
        await agent.open(CTX, [chunk_id])


async def local_copies(agent: Agent) -> set[str]:
    return {copy.chunk_id for copy in await agent.local_copies(CTX, IDS)}


async def test_what_is_pinned_stays_while_everything_else_is_evicted(make: Make) -> None:
    agent = make()
    await put(agent, A, B)
    await agent.put_manifest(CTX, document("1", A, B))
    await agent.pin(CTX, "books")
    await put(agent, *IDS[2:])
    assert {A, B} < await local_copies(agent)
    assert len(await local_copies(agent)) <= 6
    assert sum(t.pinned_bytes for n in (await agent.stats(CTX)).nodes for t in n.tiers) == 2 * SIZE
    await agent.pin(CTX, "books", unpin=True)
    assert sum(t.pinned_bytes for n in (await agent.stats(CTX)).nodes for t in n.tiers) == 0


async def test_other_nodes_keep_what_is_pinned_as_soon_as_they_know(make: Make, nodes: KnownNodes) -> None:
    home, other = make(), make("other")
    await put(home, *IDS)
    await home.put_manifest(CTX, document("1", A))
    await home.pin(CTX, "books")
    await read(other, A)
    await other.follow_pins(CTX)
    await read(other, *IDS[1:])
    await home.put_manifest(CTX, document("2", B))  # of the same collection
    await other.follow_pins(CTX)
    await read(other, B)
    await read(other, *IDS[2:])
    assert {A, B} < await local_copies(other)


async def test_a_new_agent_of_the_home_node_remembers_the_pins(make: Make) -> None:
    agent = make()
    await put(agent, A)
    await agent.put_manifest(CTX, document("1", A))
    await agent.pin(CTX, "books")
    await agent.close()
    again = make()
    await again.get_manifest(CTX, "books", "1")
    await again.follow_pins(CTX)
    await put(again, *IDS[1:])
    assert A in await local_copies(again)
    assert [p.num_bytes for p in await again.list_pins(CTX)] == [SIZE]


async def test_more_than_the_smallest_node_can_hold_is_not_pinned(make: Make) -> None:
    home, _ = make(capacity=100 * SIZE), make("small", capacity=3 * SIZE)
    await put(home, A, B, C)
    await home.put_manifest(CTX, document("1", A, B))
    await home.put_manifest(CTX, document("2", C))
    await home.pin(CTX, "books", "1")
    with pytest.raises(StorageFull, match=f"{3 * SIZE} bytes would be pinned"):
        await home.pin(CTX, "books", "2")
    assert (await home.list_pinned_chunks(CTX)).chunk_ids == {A, B}


async def test_a_document_beyond_the_quota_is_refused_and_nothing_of_it_stays_but_garbage(make: Make) -> None:
    agent = make(quotas=QuotaConfig(0, {"acme": 3 * SIZE}))
    await put(agent, A, B, C, D)
    await agent.put_manifest(CTX, document("1", A, B))
    await agent.put_manifest(CTX, document("2", B, C))
    with pytest.raises(StorageFull, match=rf"'acme' would have {4 * SIZE} bytes.*quota of {3 * SIZE}"):
        await agent.put_manifest(CTX, document("3", C, D))
    assert (await agent.stats(CTX)).tenants[0].quota_bytes == 3 * SIZE
    assert (await agent.collect_garbage(CTX, 0.0)).num_chunks == 1  # D
    await agent.delete_manifest(CTX, "books", "1")
    await put(agent, D)
    await agent.put_manifest(CTX, document("3", C, D))
    other = RequestContext.create(tenant="other")
    await put(agent, E, F, G, H)
    await agent.put_manifest(other, document("1", E, F, G, H, tenant="other"))


async def test_a_new_agent_knows_what_tenants_have(make: Make) -> None:
    first = make()
    await put(first, A, B, C)
    await first.put_manifest(CTX, document("1", A, B))
    await first.close()
    again = make(quotas=QuotaConfig(2 * SIZE))
    with pytest.raises(StorageFull):
        await again.put_manifest(CTX, document("2", C))
    await again.close()
    third = make()
    stored_by = (PrincipalStats("operator", 1, 2 * SIZE, 0),)
    assert (await third.stats(CTX)).tenants == (TenantStats("acme", 1, 2 * SIZE, 0, stored_by),)


async def test_what_only_another_node_has_counts_too(make: Make) -> None:
    home, other = make(alone=True), make("other", alone=True)
    await put(other, A)
    await home.put_manifest(CTX, document("1", A))
    assert await home.pin(CTX, "books") == SIZE


async def test_the_chunks_of_very_many_documents_are_counted_by_listing_them() -> None:
    sizes = {chunk_id_of(n): n for n in range(2500)}
    listed: list[str] = []

    class Own:
        async def list_page(self, ctx: RequestContext, start_after: str, limit: int) -> ChunkPage:
            assert start_after not in listed, "it was listed before"
            listed.append(start_after)
            rest = [c for c in sorted(sizes) if c > start_after]
            return ChunkPage(
                tuple(ChunkStat(c, True, sizes[c]) for c in rest[:limit]), truncated=len(rest) > limit
            )

    documents = [Document("acme", "books", str(n), (c,)) for n, c in enumerate(sizes)]
    here: Any = SimpleNamespace(truth=DictBlobs(), keys=None, documents=lambda: documents)
    neighbours = Neighbours("home", KnownNodes())
    items = Items(DictBlobs())
    upkeep = Upkeep(cast(Any, Own()), here, here, neighbours, Quotas(), cast(Any, None), items)
    assert await upkeep.tenants(CTX) == (TenantStats("acme", len(sizes), sum(sizes.values()), 0),)
    assert len(listed) == 3


async def test_another_node_verifies_what_it_has_itself_and_nothing_else(make: Make) -> None:
    home, other = make(), make("other")
    await put(home, A, B)
    await other.open(CTX, [A])
    while await local_copies(other) != {A}:
        await asyncio.sleep(0)
    assert (await verified(other))[-1].num_copies == 1


@pytest.mark.parametrize(
    "call",
    [lambda home: home.collect_garbage(CTX, 0.0), lambda home: verified(home)],
    ids=["garbage", "verify"],
)
async def test_while_a_node_does_not_answer_nothing_is_concluded(
    make: Make, nodes: KnownNodes, call: Callable[[Agent], Awaitable[object]]
) -> None:
    home, _ = make(), make("other")
    await put(home, A)
    nodes.down.add("other")
    with pytest.raises(Unavailable):
        await call(home)
    assert (await home.stat(CTX, [A]))[0].exists


async def verified(agent: Agent) -> list[VerifyProgress]:
    return [p async for p in agent.verify(CTX)]


class Stop(Exception):
    """Ends what would go on for ever."""


async def rounds(
    house: Housekeeping, run: Callable[[Housekeeping], Awaitable[None]], num_rounds: int
) -> list[float]:
    """The pauses that were made."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > num_rounds:
            raise Stop

    with pytest.raises(Stop):
        await run(replace(house, sleep=sleep))
    return pauses


async def test_garbage_is_collected_by_itself_on_the_home_node_even_after_a_failure(
    make: Make, nodes: KnownNodes
) -> None:
    home, other = make(), make("other")
    await put(home, A)
    config = GarbageConfig(period_s=5.0, grace_s=0.0)
    nodes.down.add("other")
    assert await rounds(Housekeeping(home, nodes, "home", config, 1.0), Housekeeping.collect_garbage, 1) == [
        5.0,
        5.0,
    ]
    assert (await home.stat(CTX, [A]))[0].exists
    nodes.down.clear()
    await rounds(Housekeeping(other, nodes, "other", config, 1.0), Housekeeping.collect_garbage, 1)
    assert (await home.stat(CTX, [A]))[0].exists
    await rounds(Housekeeping(home, nodes, "home", config, 1.0), Housekeeping.collect_garbage, 1)
    assert not (await home.stat(CTX, [A]))[0].exists


async def test_without_a_period_no_garbage_is_collected(make: Make, nodes: KnownNodes) -> None:
    home = make()
    await put(home, A)
    await Housekeeping(home, nodes, "home", GarbageConfig(period_s=0.0, grace_s=0.0), 1.0).collect_garbage()
    assert (await home.stat(CTX, [A]))[0].exists


async def test_every_node_follows_the_pins_by_itself(make: Make, nodes: KnownNodes) -> None:
    home, other = make(), make("other")
    await put(home, *IDS)
    await home.put_manifest(CTX, document("1", A))
    await read(other, A)
    nodes.down.add("home")
    house = Housekeeping(other, nodes, "other", GarbageConfig(), 2.0)
    assert await rounds(house, Housekeeping.follow_pins, 1) == [2.0, 2.0]
    nodes.down.clear()
    await home.pin(CTX, "books")
    await rounds(house, Housekeeping.follow_pins, 1)
    await read(other, *IDS[1:])
    assert A in await local_copies(other)


async def test_only_the_home_node_decides(make: Make) -> None:
    make()
    other = make("other")
    for refused in (
        other.collect_garbage(CTX, 0.0),
        other.pin(CTX, "books"),
        other.list_pins(CTX),
        other.list_pinned_chunks(CTX),
    ):
        with pytest.raises(FailedPrecondition):
            await refused
