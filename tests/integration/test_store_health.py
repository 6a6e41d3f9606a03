"""What the store says of itself when its object store cannot be used."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from load_tests.servers.s3 import S3Server
from services.kv_store.documents.sync import keep_synced
from services.kv_store.node.cluster_store import ClusterStore
from services.kv_store.s3.bucket import ObjectBlobs
from shared.errors import KvquiltError
from shared.request import RequestContext
from tests.kv_stores import KnownNodes, agent_on, node_on
from tests.minio_server import settings_for

CTX = RequestContext.create(deadline_ms=36_000_000)


async def cluster_of_one(directory: Path, endpoint: str) -> ClusterStore:
    agent = agent_on(
        directory, "home", KnownNodes(), objects=ObjectBlobs(settings_for(endpoint, retry_s=0.1))
    )
    with contextlib.suppress(KvquiltError):  # it will try again
        await agent.recover(CTX)
    return ClusterStore(KnownNodes({"home": agent}), "home")


async def test_keys_that_are_refused_make_it_not_ready(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody-known")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-key")
    health = await (await cluster_of_one(tmp_path, s3_server.endpoint)).health(CTX)
    assert not health.ready
    assert "refuses these credentials: set AWS_ACCESS_KEY_ID" in health.detail


async def test_an_outage_is_told_and_leaves_it_ready_for_what_needs_no_objects(
    tmp_path: Path, s3_server: S3Server
) -> None:
    health = await (await cluster_of_one(tmp_path, "127.0.0.1:9")).health(CTX)
    assert (health.ready, health.detail) == (True, "the object store cannot be reached; retry")


async def test_an_outage_later_on_is_told_too_by_health_and_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = S3Server(tmp_path / "s3")
    try:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        objects = ObjectBlobs(settings_for(server.endpoint, retry_s=0.1))
        node = node_on(tmp_path / "node", "home", KnownNodes(), objects=objects)
        await node.agent.recover(CTX)
        store = ClusterStore(KnownNodes({"home": node.agent}), "home")
        assert ((await store.health(CTX)).detail, (await store.stats(CTX)).objects_detail) == ("", "")
        syncing = asyncio.create_task(keep_synced(node.documents, look_pause_s=0.1))
        server.close()
        async with asyncio.timeout(30):
            while not (health := await store.health(CTX)).detail:
                await asyncio.sleep(0.1)
        assert (health.ready, health.detail) == (True, "the object store cannot be reached; retry")
        stats = await store.stats(CTX)
        assert (stats.objects, stats.num_unreachable) == (None, 0)
        assert "the object store cannot be reached" in stats.objects_detail
        syncing.cancel()
    finally:
        server.close()


async def test_all_is_well_with_a_store_that_answers(s3_server: S3Server, tmp_path: Path) -> None:
    health = await (await cluster_of_one(tmp_path, s3_server.endpoint)).health(CTX)
    assert (health.ready, health.detail) == (True, "")
