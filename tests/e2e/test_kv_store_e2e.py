"""The kv_store application on a Ray cluster of two nodes: files on the reader's node, copies between nodes,
an agent that dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.config import HTTPOptions, gRPCOptions

from cluster import applications
from cluster.local.launcher import free_port
from protos.kvquilt.v1 import kv_store_node_pb2, kv_store_pb2
from services.kv_store.app import DIRECTORY_VARIABLE
from services.kv_store.config import KvStoreConfig
from services.kv_store.tiers.memory_directory import memory_directory
from shared.clients import kv_node
from shared.clients.agent_actor import NAMESPACE, actor_name, agent_address
from shared.clients.grpc_transport import CHANNEL_OPTIONS, GrpcTransport
from shared.clients.kv_node import NodeFilesClient
from shared.clients.kv_store import APPLICATION, SERVICE, KvStoreClient
from shared.clients.own_node import OwnNode
from shared.clients.serve_transport import ServeTransport
from shared.errors import FailedPrecondition, NotFound, Unavailable
from shared.kv_format import verify_chunk, write_chunk
from shared.kv_types import PIECE_BYTES, Manifest, ManifestChunk, OpenedChunk
from shared.request import RequestContext
from tests.kv_chunks import chunk_id_of, header_of, kv_of, origin_of
from tests.kv_directory import DirectoryStore
from tests.kv_stores import in_pieces

pytestmark = pytest.mark.e2e
ResultT = TypeVar("ResultT")
PUBLIC = {m.name for m in kv_store_pb2.DESCRIPTOR.services_by_name["KvStore"].methods}
INTERNAL = {m.name for m in kv_store_node_pb2.DESCRIPTOR.services_by_name["NodeStore"].methods} - PUBLIC


@dataclass(frozen=True)
class System:
    grpc_port: int
    directories: dict[str, Path]
    """By node id, the head's first."""

    @property
    def nodes(self) -> list[str]:
        return list(self.directories)


@pytest.fixture(scope="module")
def environment() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as environment:
        yield environment


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, environment: pytest.MonkeyPatch) -> Iterator[System]:
    roots = [tmp_path_factory.mktemp(name) for name in ("head", "worker")]
    for name, value in {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }.items():
        environment.setenv(name, value)
    args = [{"num_cpus": 1, "env_vars": {DIRECTORY_VARIABLE: str(root)}} for root in roots]
    cluster = Cluster(initialize_head=True, head_node_args={**args[0], "include_dashboard": False})
    try:
        worker = cluster.add_node(**args[1])
        ray.init(address=cluster.address, log_to_driver=False)
        http_port, grpc_port = free_port(), free_port()
        servicers = ["protos.kvquilt.v1.kv_store_pb2_grpc.add_KvStoreServicer_to_server"]
        serve.start(
            proxy_location="HeadOnly",
            http_options=HTTPOptions(host="127.0.0.1", port=http_port),
            grpc_options=gRPCOptions(port=grpc_port, grpc_servicer_functions=servicers),
        )
        config = KvStoreConfig(directory="/nowhere")  # no secret: nobody has to show a key
        application = applications.of_section(APPLICATION, config)
        serve.run(application, name=APPLICATION, route_prefix=f"/{APPLICATION}")
        yield System(grpc_port, {cluster.head_node.node_id: roots[0], worker.node_id: roots[1]})
    finally:
        if ray.is_initialized():
            serve.shutdown()
            ray.shutdown()
        left = [path for root in roots if (path := memory_directory(root)).exists()]
        cluster.shutdown()
    assert not left, "the agents ended in good order and left something in memory"


@pytest.fixture
async def store(system: System) -> AsyncGenerator[KvStoreClient, None]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{system.grpc_port}", options=CHANNEL_OPTIONS) as channel:
        yield KvStoreClient(GrpcTransport(channel, SERVICE, APPLICATION))


@pytest.fixture
def files(system: System) -> NodeFilesClient:
    """Every node's, through the front's handle."""
    return NodeFilesClient(ServeTransport(APPLICATION))


def ctx() -> RequestContext:
    return RequestContext.create(deadline_ms=60_000)


def large_chunk(path: Path, n: int) -> str:
    """A file of several stream pieces."""
    header = header_of(
        layers=4, heads=2, tokens=700, head_dim=128, chunk_id=chunk_id_of(n, ctx().tenant, 700)
    )
    assert write_chunk(path, header, *kv_of(header, n)) > 2 * PIECE_BYTES
    return header.chunk_id


async def test_a_chunk_adopted_on_one_node_is_read_as_a_file_on_the_other(
    store: KvStoreClient, files: NodeFilesClient, system: System
) -> None:
    head, worker = system.nodes
    staging = Path(await files.stage(ctx(), worker))
    assert staging == system.directories[worker] / "staging"
    chunk_id = large_chunk(staging / "mine", 1)
    assert (
        await files.adopt(ctx(), chunk_id, worker, str(staging / "mine"), origin=origin_of(chunk_id)) is False
    )

    there = await arrived(files, chunk_id, worker)
    assert not list(system.directories[head].rglob("*.arrow"))
    before = await counters(store, head)
    await asyncio.gather(*(files.open(ctx(), [chunk_id], head) for _ in range(8)))
    here = await arrived(files, chunk_id, head)
    after = await counters(store, head)
    assert after.get("peer_fetches", 0) - before.get("peer_fetches", 0) == 1
    assert after.get("peer_bytes", 0) - before.get("peer_bytes", 0) == there.size_bytes
    for opened, node in ((there, worker), (here, head)):
        root = system.directories[node]
        assert any(Path(opened.path).is_relative_to(tier) for tier in (root, memory_directory(root)))
    assert verify_chunk(here.path) == verify_chunk(there.path)


async def arrived(files: NodeFilesClient, chunk_id: str, node: str) -> OpenedChunk:
    """The chunk's file on ``node`` once it is whole."""
    while (opened := (await files.open(ctx(), [chunk_id], node))[0]).progress:
        await asyncio.sleep(0.01)
    return opened


async def counters(store: KvStoreClient, node: str) -> dict[str, int]:
    return next(n.counters for n in (await store.stats(ctx())).nodes if n.node_id == node)


async def test_bytes_go_in_and_out_as_streams(store: KvStoreClient, tmp_path: Path) -> None:
    chunk_id = large_chunk(tmp_path / "mine", 2)
    data = (tmp_path / "mine").read_bytes()
    for existed in (False, True):
        pieces = in_pieces(data, PIECE_BYTES)
        assert await store.put(ctx(), chunk_id, len(data), pieces, origin_of(chunk_id)) is existed
    assert b"".join([piece async for piece in store.get(ctx(), chunk_id)]) == data
    assert b"".join([piece async for piece in store.get(ctx(), chunk_id, 10, 20)]) == data[10:30]
    assert (await store.stat(ctx(), [chunk_id]))[0].exists


async def test_a_document_takes_its_chunks_with_it_on_every_node(
    store: KvStoreClient, files: NodeFilesClient, system: System
) -> None:
    head, worker = system.nodes
    staging = Path(await files.stage(ctx(), worker))
    chunk_id = large_chunk(staging / "mine", 3)
    document = Manifest("default", "books", "a book", chunks=(ManifestChunk(chunk_id, (1, 2)),))
    with pytest.raises(FailedPrecondition, match="1 of 1 chunks"):
        await store.put_manifest(ctx(), document)
    await files.adopt(ctx(), chunk_id, worker, str(staging / "mine"), origin=origin_of(chunk_id))
    await files.open(ctx(), [chunk_id], head)
    await store.put_manifest(ctx(), document)
    assert await store.get_manifest(ctx(), "books", "a book") == document

    assert await store.delete_manifest(ctx(), "books", "a book") == [chunk_id]
    for directory in system.directories.values():
        assert not list(directory.rglob(f"{chunk_id}.arrow"))


async def test_other_services_reach_it_by_its_serve_handle(system: System, files: NodeFilesClient) -> None:
    store = KvStoreClient(ServeTransport(APPLICATION))
    assert (await store.stat(ctx(), [chunk_id_of(99)]))[0].exists is False
    with pytest.raises(NotFound, match="not a living node"):
        await files.open(ctx(), [chunk_id_of(99)], "nobody")
    health = await store.health(ctx())
    assert (health.ready, health.facts["nodes"]) == (True, "2")


async def test_what_is_between_nodes_cannot_be_reached_on_the_public_port(system: System) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{system.grpc_port}") as channel:
        for service, methods in ((kv_node.SERVICE, INTERNAL | {"Prefetch"}), (SERVICE, INTERNAL)):
            for method in methods:
                call: Any = channel.unary_unary(f"/{service}/{method}")
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call(b"", metadata=(("application", APPLICATION),), timeout=30)
                assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED, (service, method)


async def test_a_reader_asks_its_own_node_s_agent_and_finds_it_again_when_it_died(
    files: NodeFilesClient, system: System
) -> None:
    worker = system.nodes[1]
    reader = OwnNode(partial(agent_address, worker), Front(), pause_s=0.0)
    staging = Path(await reader.stage(ctx(), worker))
    assert staging == system.directories[worker] / "staging"
    chunk_id = large_chunk(staging / "mine", 5)
    assert (
        await reader.adopt(ctx(), chunk_id, worker, str(staging / "mine"), origin=origin_of(chunk_id))
        is False
    )
    assert (await reader.open(ctx(), [chunk_id], worker))[0].exists

    os.kill(ray.get(ray.get_actor(actor_name(worker), NAMESPACE).process_id.remote()), signal.SIGKILL)
    assert (await once_it_answers(lambda: reader.open(ctx(), [chunk_id], worker)))[0].exists


class Front(DirectoryStore):
    """One that is down: whatever is answered comes from the agent."""

    def __init__(self) -> None:
        self.failure, self.calls = Unavailable("down"), []


async def test_an_agent_that_dies_is_started_again_and_has_everything(
    files: NodeFilesClient, system: System
) -> None:
    worker = system.nodes[1]
    staging = Path(await once_it_answers(lambda: files.stage(ctx(), worker)))  # the test before killed it too
    chunk_id = large_chunk(staging / "mine", 4)
    await files.adopt(ctx(), chunk_id, worker, str(staging / "mine"), origin=origin_of(chunk_id))

    agent = ray.get_actor(actor_name(worker), NAMESPACE)
    os.kill(ray.get(agent.process_id.remote()), signal.SIGKILL)
    assert (await once_it_answers(lambda: files.open(ctx(), [chunk_id], worker)))[0].exists


async def once_it_answers(call: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Repeats ``call`` while the agent is away, which may be told as ``Unavailable`` only."""
    for _ in range(100):
        with contextlib.suppress(Unavailable):
            return await call()
        await asyncio.sleep(0.2)
    pytest.fail("the agent did not come back")
