from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from services.kv_store.node.agent import Agent
from services.kv_store.node.cluster_store import ClusterStore
from shared.errors import DeadlineExceeded, FailedPrecondition, InvalidRequest, StorageFull, Unavailable
from shared.kv_types import Chain, Manifest, ManifestChunk, PeerCopy
from shared.request import RequestContext
from tests.kv_chunks import chunk_bytes, chunk_id_of
from tests.kv_stores import KnownNodes, agent_on, in_pieces
from tests.unit.kv_store.disks import FullDisk, QuickDisk, SmallDisk

A, B = chunk_id_of(0), chunk_id_of(1)
CTX = RequestContext.create(deadline_ms=36_000_000)


class Slow:
    """An agent that counts how often it is asked what it holds, and does not say before it may."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.num_asked = 0
        self.may_answer = asyncio.Event()

    async def local_copies(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[PeerCopy]:
        self.num_asked += 1
        await self.may_answer.wait()
        return await self._agent.local_copies(ctx, chunk_ids)


@pytest.fixture
def nodes() -> KnownNodes:
    return KnownNodes()


@pytest.fixture
def agents(tmp_path: Path, nodes: KnownNodes) -> Iterator[dict[str, Agent]]:
    agents = {name: agent_on(tmp_path / name, name, nodes, QuickDisk()) for name in ("home", "near", "far")}
    yield agents
    for agent in agents.values():
        agent.check_invariants()


async def put(agent: Agent, chunk_id: str) -> None:
    await agent.put(CTX, chunk_id, len(chunk_bytes(chunk_id)), in_pieces(chunk_bytes(chunk_id)))


async def stored(agent: Agent) -> list[str]:
    return [c.chunk_id for c in (await agent.list_page(CTX)).chunks]


def document(document_id: str, *chunk_ids: str) -> Manifest:
    return Manifest("default", "books", document_id, chunks=tuple(ManifestChunk(c, (1,)) for c in chunk_ids))


async def test_concurrent_askers_share_one_copy_and_the_first_may_go_away(
    nodes: KnownNodes, agents: dict[str, Agent]
) -> None:
    await put(agents["far"], A)
    nodes.stores["far"] = far = Slow(agents["far"])  # type: ignore[assignment]
    impatient = asyncio.create_task(agents["near"].open(CTX, [A]))
    await until(lambda: far.num_asked == 1)
    patient = [asyncio.create_task(agents["near"].open(CTX, [A, A])) for _ in range(5)]
    while (await counters(agents["near"]))["coalesced"] < 5:
        await asyncio.sleep(0)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    far.may_answer.set()
    for opened in await asyncio.gather(*patient):
        assert [o.exists for o in opened] == [True, True]
    assert far.num_asked == 1
    assert await stored(agents["near"]) == [A]


async def counters(agent: Agent) -> dict[str, int]:
    (node,) = (await agent.stats(CTX)).nodes
    return {"coalesced": 0, **node.counters}


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def test_a_peer_whose_copy_is_broken_is_passed_over(
    nodes: KnownNodes, agents: dict[str, Agent], tmp_path: Path
) -> None:
    for name in ("home", "far"):
        await put(agents[name], A)
    broken = tmp_path / "home" / "chunks" / A[:2] / f"{A}.arrow"
    raw = bytearray(broken.read_bytes())
    raw[-700] ^= 1
    broken.write_bytes(raw)
    (opened,) = await agents["near"].open(CTX, [A])
    assert Path(opened.path).read_bytes() == chunk_bytes(A)
    assert not broken.exists() or await agents["home"].delete(CTX, [A])


async def test_a_chunk_that_only_unreachable_nodes_have_is_absent_for_a_reader(
    nodes: KnownNodes, agents: dict[str, Agent]
) -> None:
    await put(agents["far"], A)
    nodes.down.add("far")
    assert not (await agents["near"].open(CTX, [A]))[0].exists
    assert nodes.suspected == ["far"]


async def test_a_disk_too_full_for_a_copy_leaves_the_chunk_absent_and_nothing_behind(tmp_path: Path) -> None:
    nodes = KnownNodes()
    await put(agent_on(tmp_path / "home", "home", nodes, QuickDisk()), A)
    for full_at in range(4):  # allocate, sync, make_dir, rename
        directory = tmp_path / f"near{full_at}"
        agent_on(directory, "near", nodes, QuickDisk())
        assert not (await agent_on(directory, "near", nodes, FullDisk(full_at)).open(CTX, [A]))[0].exists
        with pytest.raises(StorageFull):
            await put(agent_on(directory, "near", nodes, FullDisk(full_at)), B)
        assert not list((directory / "staging").iterdir())


async def test_on_a_full_disk_health_says_so_and_documents_can_be_deleted(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 1 << 30)
    agent = agent_on(tmp_path / "home", "home", KnownNodes(), disk)
    await put(agent, A)
    await agent.put_manifest(CTX, document("1", A))
    assert (await agent.health(CTX)).detail == ""
    disk.room -= disk.free_bytes(tmp_path)
    with pytest.raises(StorageFull):
        await put(agent, B)
    health = await agent.health(CTX)
    assert (health.ready, "is full (0 bytes left)" in health.detail) == (True, True)
    assert await agent.delete_manifest(CTX, "books", "1") == [A]
    assert not (await agent.stat(CTX, [A]))[0].exists
    agent.check_invariants()


async def test_a_document_whose_chunks_may_lie_on_an_unreachable_node_is_refused_for_now(
    nodes: KnownNodes, agents: dict[str, Agent]
) -> None:
    await put(agents["far"], A)
    nodes.down.add("far")
    with pytest.raises(Unavailable, match="retry"):
        await agents["home"].put_manifest(CTX, document("1", A))
    nodes.down.clear()
    await agents["home"].put_manifest(CTX, document("1", A))


async def test_chunks_on_an_unreachable_node_are_deleted_when_it_is_back(
    nodes: KnownNodes, agents: dict[str, Agent], tmp_path: Path
) -> None:
    for chunk_id in (A, B):
        await put(agents["far"], chunk_id)
    await agents["home"].put_manifest(CTX, document("1", A))
    await agents["home"].put_manifest(CTX, document("2", B))
    nodes.down.add("far")
    assert await agents["home"].delete_manifest(CTX, "books", "1") == [A]
    assert await stored(agents["far"]) == sorted([A, B])

    nodes.down.clear()
    reborn = agent_on(tmp_path / "home", "home", nodes, QuickDisk())
    await reborn.recover(CTX)
    assert await stored(agents["far"]) == [B]
    agents["home"] = reborn


async def test_a_chunk_that_a_new_document_needs_survives_a_belated_deletion(
    nodes: KnownNodes, agents: dict[str, Agent]
) -> None:
    await put(agents["far"], A)
    await agents["home"].put_manifest(CTX, document("1", A))
    nodes.down.add("far")
    await agents["home"].delete_manifest(CTX, "books", "1")
    nodes.down.clear()
    await agents["home"].put_manifest(CTX, document("2", A))
    await agents["home"].recover(CTX)
    assert await stored(agents["far"]) == [A]


async def test_a_document_never_names_a_chunk_that_a_concurrent_deletion_takes(
    agents: dict[str, Agent],
) -> None:
    for round in range(20):
        await put(agents["far"], A)
        await agents["home"].put_manifest(CTX, document("old", A))
        deleting = asyncio.create_task(agents["home"].delete_manifest(CTX, "books", "old"))
        putting = asyncio.create_task(agents["home"].put_manifest(CTX, document("new", A)))
        if round % 2:
            await asyncio.sleep(0)
        results = await asyncio.gather(deleting, putting, return_exceptions=True)
        if isinstance(results[1], FailedPrecondition):
            assert await stored(agents["far"]) == []
        else:
            assert results[1] == []
            assert await stored(agents["far"]) == [A]
            await agents["home"].delete_manifest(CTX, "books", "new")


async def test_only_the_home_node_keeps_documents(agents: dict[str, Agent]) -> None:
    for call in (
        agents["near"].put_manifest(CTX, document("1")),
        agents["near"].get_manifest(CTX, "books", "1"),
        agents["near"].manifest_page(CTX),
        agents["near"].delete_manifest(CTX, "books", "1"),
    ):
        with pytest.raises(FailedPrecondition, match="home"):
            await call


async def test_the_front_answers_for_the_nodes_that_it_can_reach(
    nodes: KnownNodes, agents: dict[str, Agent]
) -> None:
    front = ClusterStore(nodes, "near")
    await put(agents["near"], A)
    nodes.down.add("far")

    assert (await front.stat(CTX, [A]))[0].exists
    assert (await front.open(CTX, [A], "near"))[0].exists
    for call in (
        front.stat(CTX, [B]),
        front.open(CTX, [A], "far"),
        agents["home"].delete(CTX, [A]),
    ):
        with pytest.raises(Unavailable):
            await call
    health = await front.health(CTX)
    assert (health.ready, health.detail, health.facts["nodes"]) == (True, "1 of 3 nodes do not answer", "2")

    nodes.down = {"home"}
    assert (await front.health(CTX)).ready is False
    with pytest.raises(Unavailable):
        await front.get_manifest(CTX, "books", "1")


async def test_nodes_that_did_not_answer_before_the_deadline_are_not_said_to_be_away(
    nodes: KnownNodes, agents: dict[str, Agent]
) -> None:
    front = ClusterStore(nodes, "home")
    nodes.down = {"home", "far"}
    late = replace(CTX, deadline_s=0.0)
    for ctx, error in ((CTX, Unavailable), (late, DeadlineExceeded)):
        for call in (front.stat(ctx, [A]), anext(front.get(ctx, A))):
            with pytest.raises(error):
                await call


async def test_the_front_prefetches_to_the_nodes_whose_agents_report_readers(
    nodes: KnownNodes, agents: dict[str, Agent], tmp_path: Path
) -> None:
    now = [0.0]
    agents["near"] = agent_on(tmp_path / "near", "near", nodes, QuickDisk(), clock=lambda: now[0])
    front = ClusterStore(nodes, "home")
    await put(agents["far"], A)
    await agents["near"].open(CTX, [B])
    await front.prefetch(CTX, [A])
    assert not await agents["near"].local_copies(CTX, [A]), "nobody has reported yet"

    await front.follow_readers(CTX)
    await front.prefetch(CTX, [A])
    while not await agents["near"].local_copies(CTX, [A]):
        await asyncio.sleep(0)
    assert not await agents["home"].local_copies(CTX, [A])

    assert await agents["near"].read_lately(CTX)
    now[0] = 600.0
    nodes.down.add("far")
    await front.follow_readers(CTX)
    await put(agents["home"], B)
    await front.prefetch(CTX, [B])
    assert (await counters(agents["near"]))["prefetches"] == 1


async def test_every_node_says_what_a_chunk_stands_behind(
    nodes: KnownNodes, agents: dict[str, Agent]
) -> None:
    for chunk_id in (A, B):
        await put(agents["home"], chunk_id)
    chunks = (ManifestChunk(A, (1, 2), text="first"), ManifestChunk(B, (3,), parent_id=A))
    manifest = Manifest(CTX.tenant, "books", "1", model_fingerprint="model", prefix_ids=(5,), chunks=chunks)
    front = ClusterStore(nodes, "home")
    await front.put_manifest(CTX, manifest)
    for store in (agents["home"], agents["near"], front):
        assert await store.chain(CTX, A) == Chain(CTX.tenant, "model", (5,), ((1, 2),), ("first",))
        assert await store.chain(CTX, B) is None
    with pytest.raises(InvalidRequest, match="chunk_id"):
        await agents["near"].chain(CTX, "no identity")
    nodes.down = {"home"}
    with pytest.raises(Unavailable):
        await agents["near"].chain(CTX, A)
