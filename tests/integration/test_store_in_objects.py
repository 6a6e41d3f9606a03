"""A home agent whose truth is a real S3 server: it restarts, moves, and the server goes away and comes
back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from load_tests.servers.s3 import S3Server
from services.kv_store.node.agent import Agent
from services.kv_store.s3.bucket import ObjectBlobs
from shared.errors import Unavailable
from shared.kv_format import verify_chunk
from shared.kv_stores import Store
from shared.kv_types import Manifest, ManifestChunk
from shared.request import RequestContext
from tests.kv_chunks import chunk_bytes, chunk_id_of, origin_of
from tests.kv_stores import KnownNodes, agent_on, in_pieces, over_grpc
from tests.minio_server import settings_for

CTX = RequestContext.create(tenant="acme", deadline_ms=36_000_000)
IDS = [chunk_id_of(n) for n in range(6)]


@pytest.fixture
def objects(own_server: S3Server) -> ObjectBlobs:
    return ObjectBlobs(settings_for(own_server.endpoint, retry_s=0.5))


def home_on(directory: Path, objects: ObjectBlobs | None) -> Agent:
    return agent_on(directory, "home", KnownNodes(), objects=objects)


async def put(agent: Store, chunk_id: str) -> None:
    data = chunk_bytes(chunk_id)
    await agent.put(CTX, chunk_id, len(data), in_pieces(data), origin_of(chunk_id))


def document(document_id: str, *chunk_ids: str) -> Manifest:
    return Manifest(
        "acme", "books", document_id, chunks=tuple(ManifestChunk(c, (1, 2), text="t") for c in chunk_ids)
    )


async def document_ids(agent: Agent) -> list[str]:
    return [m.document_id for m in (await agent.manifest_page(CTX)).manifests]


async def readable(agent: Agent, chunk_ids: list[str]) -> list[str]:
    """Those that can be opened, whole and their own."""
    opened = await agent.open(CTX, chunk_ids)
    return [o.chunk_id for o in opened if o.exists and verify_chunk(o.path, o.chunk_id)]


async def test_a_home_that_moves_to_an_empty_directory_has_everything(
    objects: ObjectBlobs, tmp_path: Path
) -> None:
    old = home_on(tmp_path / "old", objects)
    for chunk_id in IDS:
        await put(old, chunk_id)
    for number in range(3):
        await old.put_manifest(CTX, document(str(number), *IDS[2 * number : 2 * number + 2]))
    assert await old.delete_manifest(CTX, "books", "0") == IDS[:2]
    await old.close()

    new = home_on(tmp_path / "new", objects)
    assert await document_ids(new) == ["1", "2"]
    assert await new.get_manifest(CTX, "books", "2") == document("2", *IDS[4:])
    assert sorted(c.chunk_id for c in (await new.list_page(CTX)).chunks) == sorted(IDS[2:])
    assert sorted(await readable(new, IDS)) == sorted(IDS[2:])
    assert await new.delete_manifest(CTX, "books", "1") == IDS[2:4]
    new.check_invariants()
    await new.close()


async def test_a_store_that_gets_an_object_store_later_brings_everything_there(
    objects: ObjectBlobs, tmp_path: Path
) -> None:
    alone = home_on(tmp_path / "alone", None)
    await put(alone, IDS[0])
    await alone.put_manifest(CTX, document("1", IDS[0]))
    await alone.close()

    agent = home_on(tmp_path / "alone", objects)
    await agent.recover(CTX)
    assert await document_ids(agent) == ["1"]
    await uploaded(objects, IDS[0])
    await agent.close()

    elsewhere = home_on(tmp_path / "elsewhere", objects)
    assert await document_ids(elsewhere) == ["1"]
    assert await readable(elsewhere, IDS[:1]) == IDS[:1]
    await elsewhere.close()


async def uploaded(objects: ObjectBlobs, chunk_id: str) -> None:
    for _ in range(2000):
        if any(chunk_id in b.name for b in objects.list("chunks/").blobs):
            return
        await asyncio.sleep(0.01)
    pytest.fail("it never reaches the object store")


async def test_while_the_server_is_down_at_the_start_local_chunks_are_read_and_documents_wait(
    objects: ObjectBlobs, own_server: S3Server, tmp_path: Path
) -> None:
    before = home_on(tmp_path / "home", objects)
    await put(before, IDS[0])
    await before.put_manifest(CTX, document("1", IDS[0]))
    await before.close()

    own_server.stop()
    agent = home_on(tmp_path / "home", objects)
    assert await readable(agent, [IDS[0], IDS[1]]) == [IDS[0]]
    with pytest.raises(Unavailable):
        await agent.get_manifest(CTX, "books", "1")
    with pytest.raises(Unavailable):
        await agent.delete(CTX, [IDS[0]])
    own_server.start()
    assert await agent.get_manifest(CTX, "books", "1") == document("1", IDS[0])
    assert (await agent.delete(CTX, [IDS[0]])).referenced == (IDS[0],)
    agent.check_invariants()
    await agent.close()


async def test_an_ingest_that_lost_the_server_in_the_middle_goes_on_where_it_was(
    objects: ObjectBlobs, own_server: S3Server, tmp_path: Path
) -> None:
    agent = home_on(tmp_path / "home", objects)
    for chunk_id in IDS[:3]:
        await put(agent, chunk_id)
    await agent.put_manifest(CTX, document("1", *IDS[:3]))
    own_server.stop()
    with pytest.raises(Unavailable):
        await put(agent, IDS[3])
    with pytest.raises(Unavailable):
        await agent.put_manifest(CTX, document("2", IDS[0]))
    assert await agent.get_manifest(CTX, "books", "1") == document("1", *IDS[:3])
    assert await readable(agent, IDS[:3]) == IDS[:3]
    own_server.start()
    for chunk_id in IDS[:4]:
        await put(agent, chunk_id)
    await agent.put_manifest(CTX, document("2", IDS[3]))
    agent.check_invariants()
    await agent.close()

    elsewhere = home_on(tmp_path / "elsewhere", objects)
    assert await document_ids(elsewhere) == ["1", "2"]
    assert await readable(elsewhere, IDS[:4]) == IDS[:4]
    await elsewhere.close()


async def test_callers_over_grpc_are_told_in_a_sentence_that_the_server_is_down_and_may_call_again(
    objects: ObjectBlobs, own_server: S3Server, tmp_path: Path
) -> None:
    agent = home_on(tmp_path, objects)
    async with over_grpc(agent) as client:
        await put(client, IDS[0])
        own_server.stop()
        calls = (
            lambda: put(client, IDS[1]),
            lambda: client.put_manifest(CTX, document("1", IDS[0])),
            lambda: client.stat(CTX, [IDS[1]]),
        )
        for call in calls:
            with pytest.raises(Unavailable) as raised:
                await call()
            assert type(raised.value) is Unavailable
            assert raised.value.retryable
            assert raised.value.detail == "the object store cannot be reached; retry"
        own_server.start()
        await put(client, IDS[1])
        assert [s.exists for s in await client.stat(CTX, IDS[:2])] == [True, True]
    await agent.close()
