"""A retrieval replica without its Milvus: alive, telling why, and at work as soon as Milvus is there."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from milvus_lite.adapter.grpc.server import start_server_in_thread
from pymilvus import MilvusClient

from protos.kvquilt.v1 import common_pb2, retrieval_pb2
from services.retrieval import milvus
from services.retrieval.app import Retrieval
from services.retrieval.config import RetrievalConfig
from shared.errors import ConfigError, Unavailable


def config(uri: str) -> RetrievalConfig:
    return RetrievalConfig(uri, startup_timeout_s=0.5, embedder_threads=1)


async def health(replica: Retrieval) -> tuple[bool, str]:
    answer = await replica.Health(common_pb2.HealthRequest())
    return answer.ready, answer.detail


async def test_it_starts_to_work_when_its_milvus_does(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    replica = Retrieval(config(f"http://127.0.0.1:{port}"))
    assert await health(replica) == (
        False,
        "the Milvus server at milvus_uri does not answer, or refuses milvus_token",
    )
    with pytest.raises(Unavailable, match="milvus_uri does not answer"):
        await replica.ListCollections(retrieval_pb2.ListCollectionsRequest())

    server, database, _ = await asyncio.to_thread(
        start_server_in_thread, data_dir=str(tmp_path / "index"), host="127.0.0.1", port=port
    )
    try:
        async with asyncio.timeout(60):
            while not (await health(replica))[0]:
                await asyncio.sleep(0.1)
        assert not (await replica.ListCollections(retrieval_pb2.ListCollectionsRequest())).collections
    finally:
        del replica
        server.stop(grace=None).wait()
        database.close()


async def test_a_setting_that_stays_wrong_is_told_without_trying_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    replica = Retrieval(config(str(tmp_path / "file" / "index")))
    ready, detail = await health(replica)
    assert not ready
    assert detail.startswith("milvus_uri: cannot keep an index there")
    await asyncio.wait_for(replica._opening, 60)
    with pytest.raises(ConfigError):
        await replica.ListCollections(retrieval_pb2.ListCollectionsRequest())


def test_an_embedded_index_is_not_pinged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server would end a connection that is pinged as often as pymilvus does it."""
    options: dict[str, object] = {}

    def connect(uri: str, grpc_options: dict[str, object]) -> MilvusClient:
        options.update(grpc_options)
        return MilvusClient(uri=uri, grpc_options=grpc_options)

    monkeypatch.setattr(milvus, "MilvusClient", connect)
    opened = milvus.connect(str(tmp_path / "index"), "", 10.0)
    try:
        assert opened.client.list_collections() == []
    finally:
        opened.close()
    assert options == {"grpc.keepalive_time_ms": 2**31 - 1}
