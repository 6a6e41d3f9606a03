"""What every store keeps to: the domain object itself, an agent over gRPC, and a cluster of agents behind its
front."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.kv_store.blobs.protocol import Blobs
from services.kv_store.s3.bucket import ObjectBlobs
from shared.errors import CorruptData, FailedPrecondition, InvalidRequest, NotFound
from shared.kv_format import ChunkFile, verify_chunk
from shared.kv_types import DeletedChunks, Manifest, ManifestChunk, Origin
from shared.request import RequestContext
from tests.dict_blobs import DictBlobs
from tests.kv_chunks import chunk_bytes, chunk_id_of, origin_of
from tests.kv_stores import KnownNodes, WholeStore, agent_on, cluster, front_over_grpc, in_pieces, over_grpc
from tests.minio_server import settings_for

A, B, C = (chunk_id_of(n) for n in range(3))
CTX = RequestContext.create(tenant="acme", deadline_ms=36_000_000)


STORES = [
    *(
        f"{store}, {objects}"
        for objects in ("disks only", "object store", "S3 server")
        for store in ("one node", "a cluster")
    ),
    "one node without room, object store",
    "one node over gRPC, disks only",
    "a cluster over gRPC, disks only",
    "a cluster over gRPC, S3 server",
]


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WholeStore]:
    objects = objects_of(request)
    if "cluster" in request.param:
        async with (
            cluster(tmp_path, ["home", "other"], objects) as (front, agents, _),
            front_over_grpc(front) as client,
        ):
            yield client if "gRPC" in request.param else front
            for agent in agents.values():
                agent.check_invariants()
        return
    room: dict[str, Any] = {}
    if "without room" in request.param:
        room = {"capacity_bytes": len(chunk_bytes(A)) + 1, "memory_bytes": 1, "lease_s": 0}
    agent = agent_on(tmp_path, "home", KnownNodes(), objects=objects, **room)
    async with over_grpc(agent) as client:
        yield client if "gRPC" in request.param else agent
    agent.check_invariants()
    await agent.close()


def objects_of(request: pytest.FixtureRequest) -> Blobs | None:
    if "S3 server" in request.param:
        return ObjectBlobs(settings_for(request.getfixturevalue("s3_server").endpoint))
    return DictBlobs() if "object store" in request.param else None


async def put(store: WholeStore, chunk_id: str, seed: int = 0) -> bool:
    data = chunk_bytes(chunk_id, seed)
    return await store.put(CTX, chunk_id, len(data), in_pieces(data), origin_of(chunk_id))


async def adopt(store: WholeStore, chunk_id: str, seed: int = 0, replace: bool = False) -> bool:
    path = Path(await store.stage(CTX, "home")) / "mine"
    path.write_bytes(chunk_bytes(chunk_id, seed))
    existed = await store.adopt(CTX, chunk_id, "home", str(path), replace, origin=origin_of(chunk_id))
    assert not path.exists()
    return existed


async def read(store: WholeStore, chunk_id: str, offset: int = 0, length: int | None = None) -> bytes:
    return b"".join([piece async for piece in store.get(CTX, chunk_id, offset, length)])


async def stored(store: WholeStore) -> list[str]:
    return [c.chunk_id for c in (await store.list_page(CTX)).chunks]


def document(document_id: str, *chunk_ids: str, collection: str = "books") -> Manifest:
    return Manifest(
        "acme", collection, document_id, chunks=tuple(ManifestChunk(c, (1, 2), text="t") for c in chunk_ids)
    )


@pytest.mark.parametrize("give", [put, adopt])
async def test_a_chunk_that_was_given_can_be_read_as_file_and_as_stream(
    store: WholeStore, give: Callable[..., object]
) -> None:
    assert await give(store, A) is False
    assert await give(store, A) is True

    opened, absent = await store.open(CTX, [A, B], "home")
    assert (opened.exists, absent.exists) == (True, False)
    ChunkFile.open(opened.path, opened.layers).close()
    assert verify_chunk(opened.path).size_bytes == opened.size_bytes
    assert await read(store, A) == chunk_bytes(A)
    assert await read(store, A, 3) == chunk_bytes(A)[3:]
    assert await read(store, A, 3, 4) == chunk_bytes(A)[3:7]
    first, second = await store.stat(CTX, [B, A])
    assert (first.exists, second.exists, second.size_bytes) == (False, True, opened.size_bytes)


async def test_a_broken_file_is_replaced_on_demand(store: WholeStore) -> None:
    await adopt(store, A, seed=1)
    assert await adopt(store, A, seed=2, replace=True) is True
    assert await read(store, A) == chunk_bytes(A, 2)


@pytest.mark.parametrize("change", ["short", "long", "flipped", "another"])
async def test_a_stream_that_is_not_the_chunk_leaves_nothing(store: WholeStore, change: str) -> None:
    whole = chunk_bytes(A)
    data = {
        "short": whole[:-9],
        "long": whole + b"x",
        "flipped": whole[:99] + b"x" + whole[100:],
        "another": chunk_bytes(B),
    }[change]
    with pytest.raises((CorruptData, InvalidRequest)):
        await store.put(CTX, A, len(whole), in_pieces(data), origin_of(A))
    assert await stored(store) == []
    assert not list(Path(await store.stage(CTX, "home")).iterdir())


async def test_what_is_put_under_another_chunks_identity_or_another_tenants_is_refused(
    store: WholeStore,
) -> None:
    """Else whoever reads the chunk would be told what somebody else wrote."""
    forged = chunk_bytes(A, seed=9)
    foreign = RequestContext.create(tenant="beta")
    other = Origin(origin_of(A).prefix_ids, origin_of(B).parent_id)
    for ctx, origin in ((foreign, origin_of(A)), (CTX, other), (CTX, Origin())):
        with pytest.raises(InvalidRequest, match="is not the identity of what the file holds"):
            await store.put(ctx, A, len(forged), in_pieces(forged), origin)
    assert await stored(store) == []
    assert not list(Path(await store.stage(CTX, "home")).iterdir())


async def test_what_is_stored_is_not_replaced_by_a_stream(store: WholeStore) -> None:
    await put(store, A, seed=1)
    assert await put(store, A, seed=2) is True
    assert await read(store, A) == chunk_bytes(A, 1)


async def test_unknown_chunks_and_documents_are_not_found(store: WholeStore) -> None:
    with pytest.raises(NotFound):
        await read(store, A)
    with pytest.raises(NotFound):
        await store.get_manifest(CTX, "books", "1")
    with pytest.raises(NotFound):
        await store.delete_manifest(CTX, "books", "1")
    assert await store.delete(CTX, [A]) == DeletedChunks((), ())


async def test_malformed_requests_are_refused(store: WholeStore) -> None:
    for bad in ("", "../x", "A" * 40):
        with pytest.raises(InvalidRequest):
            await store.stat(CTX, [bad])
        with pytest.raises(InvalidRequest):
            await store.delete(CTX, [bad])
        with pytest.raises(InvalidRequest):
            await read(store, bad)
        with pytest.raises(InvalidRequest):
            await store.put_manifest(CTX, document("1", bad))
    with pytest.raises(InvalidRequest, match="tenant"):
        await store.put_manifest(CTX, Manifest("somebody", "books", "1"))
    with pytest.raises(InvalidRequest, match="path"):
        await store.adopt(CTX, A, "home", "/etc/passwd")
    with pytest.raises((NotFound, FailedPrecondition)):
        await store.open(CTX, [A], "no such node")


async def test_a_document_of_missing_chunks_is_refused_and_says_how_many(store: WholeStore) -> None:
    await put(store, A)
    with pytest.raises(FailedPrecondition, match="2 of 3 chunks"):
        await store.put_manifest(CTX, document("1", A, B, C, B))
    with pytest.raises(NotFound):
        await store.get_manifest(CTX, "books", "1")


async def test_a_document_keeps_its_chunks_and_takes_them_with_it(store: WholeStore) -> None:
    for chunk_id in (A, B):
        await put(store, chunk_id)
    assert await store.put_manifest(CTX, document("1", A)) == []
    assert await store.get_manifest(CTX, "books", "1") == document("1", A)
    assert await store.delete(CTX, [A, B, C]) == DeletedChunks((B,), (A,))
    assert await store.delete_manifest(CTX, "books", "1") == [A]
    assert await stored(store) == []


async def test_a_chunk_of_two_documents_goes_with_the_second(store: WholeStore) -> None:
    await put(store, A)
    await store.put_manifest(CTX, document("1", A))
    await store.put_manifest(CTX, document("x", A, collection="films"))
    assert await store.delete_manifest(CTX, "books", "1") == []
    assert await stored(store) == [A]
    assert await store.delete_manifest(CTX, "films", "x") == [A]
    assert await stored(store) == []


async def test_a_chunk_of_another_tenants_document_is_not_to_be_referred_to(store: WholeStore) -> None:
    await put(store, A)
    await store.put_manifest(CTX, document("1", A))
    other_tenant, films = RequestContext.create(tenant="other"), document("x", A, collection="films")
    with pytest.raises(FailedPrecondition, match="1 of 1 chunks of the document are not stored"):
        await store.put_manifest(other_tenant, replace(films, tenant="other"))


async def test_replacing_a_document_removes_what_only_the_old_one_had(store: WholeStore) -> None:
    for chunk_id in (A, B, C):
        await put(store, chunk_id)
    await store.put_manifest(CTX, document("1", A, B))
    assert await store.put_manifest(CTX, document("1", B, C)) == [A]
    assert await stored(store) == sorted([B, C])


async def test_a_documents_auxiliary_kv_stays_and_goes_with_it_as_its_chunks_do(store: WholeStore) -> None:
    bare = document("1", A)
    encoded = replace(bare, auxiliary="a model", chunks=(replace(bare.chunks[0], auxiliary_id=B),))
    await put(store, A)
    with pytest.raises(FailedPrecondition, match="1 of 2 chunks"):
        await store.put_manifest(CTX, encoded)
    with pytest.raises(InvalidRequest):
        await store.put_manifest(
            CTX, replace(encoded, chunks=(replace(bare.chunks[0], auxiliary_id="../x"),))
        )
    await put(store, B)
    assert await store.put_manifest(CTX, encoded) == []
    assert await store.get_manifest(CTX, "books", "1") == encoded
    assert (await store.manifest_page(CTX, "books", summary=True)).manifests[0].kv_ids == (A, B)
    assert await store.delete(CTX, [A, B]) == DeletedChunks((), (A, B))
    assert (await store.collect_garbage(CTX, grace_s=1e-6)).num_chunks == 0
    assert [t.num_bytes for t in (await store.stats(CTX)).tenants] == [2 * len(chunk_bytes(A))]
    assert await store.put_manifest(CTX, bare) == [B]
    await put(store, B)
    await store.put_manifest(CTX, encoded)
    assert sorted(await store.delete_manifest(CTX, "books", "1")) == sorted([A, B])
    assert await stored(store) == []


async def test_an_empty_document_is_a_document(store: WholeStore) -> None:
    await store.put_manifest(CTX, document("1"))
    assert await store.get_manifest(CTX, "books", "1") == document("1")


async def test_listings_come_in_pages(store: WholeStore) -> None:
    ids = sorted(chunk_id_of(n) for n in range(5))
    for chunk_id in ids:
        await put(store, chunk_id)
    first = await store.list_page(CTX, limit=3)
    rest = await store.list_page(CTX, first.chunks[-1].chunk_id, limit=3)
    assert [c.chunk_id for c in (*first.chunks, *rest.chunks)] == ids
    assert (first.truncated, rest.truncated) == (True, False)

    for collection, document_id in (("a", "1"), ("b", "1"), ("b", "2")):
        await store.put_manifest(CTX, document(document_id, *ids, collection=collection))
    page = await store.manifest_page(CTX, limit=2, summary=True)
    last = await store.manifest_page(CTX, start_after=page.manifests[-1].cursor(""), limit=2)
    assert [(m.collection, m.document_id) for m in (*page.manifests, *last.manifests)] == [
        ("a", "1"),
        ("b", "1"),
        ("b", "2"),
    ]
    assert (page.truncated, last.truncated) == (True, False)
    assert page.manifests[0].chunks[0].text == ""


async def test_a_tenants_documents_are_counted_by_how_they_were_made(store: WholeStore) -> None:
    for name, kv_context in (("1", ""), ("2", "header"), ("3", "header")):
        await store.put_manifest(CTX, replace(document(name), kv_context=kv_context))
    other_tenant = RequestContext.create(tenant="other")
    await store.put_manifest(other_tenant, replace(document("1"), tenant="other"))
    counts = await store.count_documents(CTX)
    assert [(c.collection, c.num_documents, c.kv_context) for c in counts] == [
        ("books", 1, ""),
        ("books", 2, "header"),
    ]
    assert {c.made_for.prefix for c in counts} == {document("1").made_for.prefix}


async def test_health_counts(store: WholeStore) -> None:
    await put(store, A)
    await store.put_manifest(CTX, document("1", A))
    health = await store.health(CTX)
    assert health.ready
    assert {
        "chunks": "1",
        "documents": "1",
        "bytes": str(len(chunk_bytes(A))),
    }.items() <= health.facts.items()
