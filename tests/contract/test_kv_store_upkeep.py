"""What keeps the store whole and small, held against every store: damage found and mended, garbage, pins,
quotas, statistics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.kv_store.node.agent import Agent
from services.kv_store.tiers.chunk_names import blob_of
from shared.errors import FailedPrecondition, InvalidRequest, NotFound
from shared.kv_reports import CollectedGarbage, DamagedCopy, PrincipalStats, TenantStats, VerifyProgress
from shared.kv_stores import NodeAgent
from shared.kv_types import Manifest, ManifestChunk
from shared.pinned import PinnedDocuments
from shared.principals.principal import OPERATOR
from shared.request import RequestContext
from tests.dict_blobs import DictBlobs
from tests.kv_chunks import chunk_bytes, chunk_id_of, origin_of
from tests.kv_stores import KnownNodes, WholeStore, agent_on, cluster, front_over_grpc, in_pieces, over_grpc

A, B, C = (chunk_id_of(n) for n in range(3))
CTX = RequestContext.create(tenant="acme", deadline_ms=36_000_000)
SIZE = len(chunk_bytes(A))
AT_ONCE_S = 1e-6


@dataclass
class World:
    store: WholeStore
    home: NodeAgent
    agents: dict[str, Agent]
    directory: Path
    objects: DictBlobs | None

    async def put(self, chunk_id: str) -> None:
        await self.store.put(CTX, chunk_id, SIZE, in_pieces(chunk_bytes(chunk_id)), origin_of(chunk_id))

    async def document(
        self, document_id: str, *chunk_ids: str, tenant: str = "acme", collection: str = "books"
    ) -> None:
        chunks = tuple(ManifestChunk(c, (1, 2), text="t") for c in chunk_ids)
        ctx = RequestContext.create(tenant=tenant)
        await self.store.put_manifest(ctx, Manifest(tenant, collection, document_id, chunks=chunks))

    async def read(self, chunk_id: str) -> bytes:
        return b"".join([piece async for piece in self.store.get(CTX, chunk_id)])

    def files(self, chunk_id: str) -> list[Path]:
        """Every local file of the chunk."""
        return sorted(p for p in self.directory.rglob(f"{chunk_id}.arrow") if "staging" not in p.parts)

    async def verify(self, repair: bool = False) -> tuple[VerifyProgress, list[DamagedCopy]]:
        messages = [p async for p in self.store.verify(CTX, repair)]
        return messages[-1], [d for m in messages for d in m.damaged]

    async def records(self, repair: bool = False) -> list[tuple[str, bool]]:
        """Damaged manifests and pins, and whether they were restored."""
        found = [d async for p in self.store.verify(CTX, repair) for d in p.damaged_records]
        return [(d.name, d.restored) for d in found]


SHAPES = ("one node", "one node over gRPC", "a cluster over gRPC")
EVERYWHERE = [f"{shape}, {keeper}" for shape in SHAPES for keeper in ("disks only", "object store")]
with_objects = pytest.mark.parametrize(
    "world", [name for name in EVERYWHERE if "object store" in name], indirect=True
)
in_clusters = pytest.mark.parametrize(
    "world", [name for name in EVERYWHERE if "cluster" in name], indirect=True
)


@pytest.fixture(params=EVERYWHERE)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    objects = DictBlobs() if "object store" in request.param else None
    if "cluster" in request.param:
        async with (
            cluster(tmp_path, ["home", "other"], objects) as (front, agents, nodes),
            front_over_grpc(front) as client,
        ):
            yield World(client, nodes.stores["home"], agents, tmp_path, objects)
            for agent in agents.values():
                agent.check_invariants()
        return
    agent = agent_on(tmp_path, "home", KnownNodes(), objects=objects)
    async with over_grpc(agent) as client:
        store = client if "gRPC" in request.param else agent
        yield World(store, store, {"home": agent}, tmp_path, objects)
    agent.check_invariants()
    await agent.close()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


async def test_a_whole_store_is_verified_copy_by_copy(world: World) -> None:
    for chunk_id in (A, B):
        await world.put(chunk_id)
    await world.document("1", A, B)
    last, damaged = await world.verify()
    num_copies = sum(len(world.files(c)) for c in (A, B)) + (2 if world.objects is not None else 0)
    assert (last, damaged) == (VerifyProgress(num_copies, num_copies * SIZE), [])


@pytest.mark.parametrize("damage", [flip, cut])
async def test_a_damaged_file_is_found_and_after_a_repair_nothing_damaged_is_left(
    world: World, damage: Callable[[Path], None]
) -> None:
    await world.put(A)
    await world.document("1", A)
    damage(world.files(A)[0])
    last, damaged = await world.verify()
    assert [(d.chunk_id, d.restored) for d in damaged] == [(A, False)]
    assert damaged[0].reason
    assert len(world.files(A)) == 1
    last, damaged = await world.verify(repair=True)
    if world.objects is None:  # there was no other copy
        assert ([d.restored for d in damaged], last.missing_chunk_ids, world.files(A)) == ([False], (A,), [])
        await world.put(A)
    else:
        assert ([d.restored for d in damaged], last.missing_chunk_ids) == ([True], ())
    assert await world.read(A) == chunk_bytes(A)
    last, damaged = await world.verify()
    assert (damaged, last.missing_chunk_ids) == ([], ())


async def test_a_file_that_was_removed_behind_the_stores_back_is_missed(world: World) -> None:
    await world.put(A)
    await world.document("1", A)
    world.files(A)[0].unlink()
    last, damaged = await world.verify()
    assert (last.missing_chunk_ids, damaged) == ((A,) if world.objects is None else (), [])
    assert sum(t.num_chunks for n in (await world.store.stats(CTX)).nodes for t in n.tiers) == 0
    if world.objects is None:
        assert (await world.verify(repair=True))[0].missing_chunk_ids == (A,)
        await world.put(A)
    assert await world.read(A) == chunk_bytes(A)


@with_objects
async def test_a_damaged_object_is_replaced_by_a_good_copy_from_a_node(world: World) -> None:
    assert world.objects is not None
    await world.put(A)
    await world.document("1", A)
    data = bytearray(world.objects.data[blob_of(A)])
    data[500] ^= 1
    world.objects.data[blob_of(A)] = bytes(data)
    last, damaged = await world.verify()
    assert [(d.chunk_id, d.tier, d.restored) for d in damaged] == [(A, "objects", False)]
    last, damaged = await world.verify(repair=True)
    assert ([d.restored for d in damaged], last.missing_chunk_ids) == ([True], ())
    assert world.objects.data[blob_of(A)] == chunk_bytes(A)


@with_objects
async def test_a_lost_object_is_put_again_from_a_nodes_copy(world: World) -> None:
    assert world.objects is not None
    await world.put(A)
    await world.document("1", A)
    del world.objects.data[blob_of(A)]
    assert (await world.verify())[0].missing_chunk_ids == (A,)
    assert (await world.verify(repair=True))[0].missing_chunk_ids == ()
    assert world.objects.data[blob_of(A)] == chunk_bytes(A)


async def test_what_documents_need_and_nobody_has_is_missing(world: World) -> None:
    for chunk_id in (A, B):
        await world.put(chunk_id)
    await world.document("1", A, B)
    for path in world.files(A):
        path.write_bytes(b"torn")
    if world.objects is not None:
        world.objects.data[blob_of(A)] = b"torn"
    assert (await world.verify())[0].missing_chunk_ids == (A,)
    last, damaged = await world.verify(repair=True)
    assert last.missing_chunk_ids == (A,)
    assert not any(d.restored for d in damaged)
    assert world.files(A) == []
    last, damaged = await world.verify()
    assert (last.missing_chunk_ids, damaged) == ((A,), [])
    with pytest.raises(NotFound):
        await world.read(A)


async def test_garbage_goes_everywhere_and_what_documents_need_stays(world: World) -> None:
    for chunk_id in (A, B):
        await world.put(chunk_id)
    await world.document("1", A)
    assert await world.store.collect_garbage(CTX, AT_ONCE_S, dry_run=True) == CollectedGarbage(1, SIZE, 0)
    assert await world.store.collect_garbage(CTX, AT_ONCE_S) == CollectedGarbage(1, SIZE, 0)
    assert (await world.store.stat(CTX, [A, B]))[0].exists
    assert not (await world.store.stat(CTX, [A, B]))[1].exists
    assert world.files(B) == []
    assert world.objects is None or set(world.objects.data) & {blob_of(A), blob_of(B)} == {blob_of(A)}
    assert await world.store.collect_garbage(CTX, AT_ONCE_S) == CollectedGarbage(0, 0, 0)
    await world.document("2", A)


def harm_manifests(world: World, everywhere: bool) -> None:
    """Of the mirror or the first copy, or ``everywhere``."""
    for path in world.directory.rglob("manifests/**/*.json"):
        if everywhere or "copies" not in path.parts:
            path.write_bytes(path.read_bytes()[:-9])
    if world.objects is not None and everywhere:
        for name in [n for n in world.objects.data if n.startswith("manifests/")]:
            world.objects.data[name] = b"torn"


async def test_a_damaged_manifest_is_found_and_restored_from_its_other_copy(world: World) -> None:
    await world.put(A)
    await world.document("1", A)
    harm_manifests(world, everywhere=False)
    assert await world.records() == [("acme/books/1", False)]
    assert "1 documents are damaged" in (await world.store.health(CTX)).detail
    assert await world.records(repair=True) == [("acme/books/1", True)]
    assert await world.records() == []
    assert (await world.store.health(CTX)).detail == ""


async def test_while_a_manifest_is_lost_for_good_no_garbage_goes_and_health_says_so(world: World) -> None:
    for chunk_id in (A, B):
        await world.put(chunk_id)
    await world.document("1", A)
    harm_manifests(world, everywhere=True)
    assert await world.records(repair=True) == [("acme/books/1", False)]
    with pytest.raises(FailedPrecondition, match="kvquilt store verify"):
        await world.store.collect_garbage(CTX, AT_ONCE_S)
    health = await world.store.health(CTX)
    assert (health.ready, "no garbage is collected" in health.detail) == (True, True)
    await world.document("1", A)
    assert (await world.store.health(CTX)).detail == ""
    assert await world.store.collect_garbage(CTX, AT_ONCE_S) == CollectedGarbage(1, SIZE, 0)


async def test_lost_auxiliary_kv_of_a_document_is_missing_and_with_a_pin_it_is_pinned(world: World) -> None:
    for chunk_id in (A, B):
        await world.put(chunk_id)
    chunks = (ManifestChunk(A, (1, 2), text="t", auxiliary_id=B),)
    await world.store.put_manifest(CTX, Manifest("acme", "books", "1", chunks=chunks, auxiliary="a model"))
    assert await world.store.pin(CTX, "books") == 2 * SIZE
    assert (await world.home.list_pinned_chunks(CTX)).chunk_ids == {A, B}
    for path in world.files(B):
        path.write_bytes(b"torn")
    if world.objects is not None:
        world.objects.data[blob_of(B)] = b"torn"
    last, _ = await world.verify(repair=True)
    assert last.missing_chunk_ids == (B,)


@pytest.mark.parametrize("grace_s", [0.0, -1.0, float("nan")])
async def test_garbage_is_not_collected_from_under_an_ingestion(tmp_path: Path, grace_s: float) -> None:
    async with over_grpc(agent_on(tmp_path, "home", KnownNodes())) as client:
        with pytest.raises(InvalidRequest, match=r"grace_s: .*must be (above 0|finite)"):
            await client.collect_garbage(CTX, grace_s)


async def test_young_garbage_is_kept(world: World) -> None:
    await world.put(B)
    assert await world.store.collect_garbage(CTX, 3600.0) == CollectedGarbage(0, 0, 1)
    assert (await world.store.stat(CTX, [B]))[0].exists


@pytest.mark.parametrize("reader", ["home", "other"])
@in_clusters
async def test_what_a_request_on_any_node_was_told_of_is_not_garbage(world: World, reader: str) -> None:
    await world.put(B)
    (opened,) = await world.store.open(CTX, [B], reader)
    assert opened.exists
    assert await world.store.collect_garbage(CTX, AT_ONCE_S) == CollectedGarbage(0, 0, 1)
    assert await world.read(B) == chunk_bytes(B)


async def test_statistics_count_distinct_chunks_per_tenant_and_every_copy_per_tier(world: World) -> None:
    for chunk_id in (A, B, C):
        await world.put(chunk_id)
    await world.document("1", A, B)
    await world.document("2", B)
    await world.document("x", C, tenant="beta")
    stats = await world.store.stats(CTX)
    acme, beta = (PrincipalStats(OPERATOR, *of) for of in ((2, 2 * SIZE), (1, SIZE)))
    assert stats.tenants == (
        TenantStats("acme", 2, 2 * SIZE, principals=(acme,)),
        TenantStats("beta", 1, SIZE, principals=(beta,)),
    )
    local = sum(t.num_bytes for n in stats.nodes for t in n.tiers)
    assert local == sum(p.stat().st_size for c in (A, B, C) for p in world.files(c))
    if world.objects is not None:
        assert stats.objects is not None
        assert (stats.objects.num_chunks, stats.objects.num_bytes) == (3, 3 * SIZE)


async def test_pins_are_told_with_their_bytes_and_taken_back(world: World) -> None:
    of_beta = chunk_id_of(9)
    for chunk_id in (A, B, C, of_beta):
        await world.put(chunk_id)
    await world.document("1", A, B)
    await world.document("2", B, C)
    await world.document("x", of_beta, tenant="beta")
    assert await world.store.pin(CTX, "books", "1") == 2 * SIZE
    assert await world.store.pin(CTX, "books") == 3 * SIZE
    assert await world.store.list_pins(CTX) == [
        PinnedDocuments("books", "", 3 * SIZE),
        PinnedDocuments("books", "1", 2 * SIZE),
    ]
    assert await world.store.list_pins(RequestContext.create(tenant="beta")) == []
    assert (await world.home.list_pinned_chunks(CTX)).chunk_ids == {A, B, C}
    assert await world.store.pin(CTX, "books", unpin=True) == 2 * SIZE
    pinned = await world.home.list_pinned_chunks(CTX)
    assert pinned.chunk_ids == {A, B}
    assert (await world.home.list_pinned_chunks(CTX, pinned.version)).chunk_ids == frozenset()
    with pytest.raises(NotFound, match="is not pinned"):
        await world.store.pin(CTX, "books", unpin=True)
    with pytest.raises(NotFound, match="does not exist"):
        await world.store.pin(CTX, "nowhere")
