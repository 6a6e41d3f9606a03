"""How many gRPC calls a reader's ``Open`` takes, and what of the store the public port answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.kvquilt.v1 import (
    generation_pb2,
    ingest_pb2,
    kv_store_node_pb2,
    kv_store_pb2,
    rag_pb2,
    recompute_pb2,
    retrieval_pb2,
    selection_pb2,
)
from services.kv_store.node.cluster_store import ClusterStore
from services.kv_store.node.handlers import FileHandlers, start_server
from shared.clients.kv_node import SERVICE as NODE_SERVICE
from shared.clients.kv_node import AgentClient, NodeFilesClient
from shared.clients.kv_store import SERVICE
from shared.clients.own_node import OwnNode
from shared.errors import Unavailable
from shared.request import RequestContext
from tests.kv_chunks import chunk_id_of
from tests.kv_stores import FrontHandlers, HandleTransport, KnownNodes, agent_on, public_server

CTX = RequestContext.create(deadline_ms=36_000_000)
A = chunk_id_of(0)
PUBLIC = (generation_pb2, ingest_pb2, kv_store_pb2, rag_pb2, recompute_pb2, retrieval_pb2, selection_pb2)


def methods(module: Any) -> set[str]:
    return {m.name for service in module.DESCRIPTOR.services_by_name.values() for m in service.methods}


INTERNAL = methods(kv_store_node_pb2) - methods(kv_store_pb2)


class Counting(grpc.aio.ServerInterceptor):
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        self.calls[details.method] += 1
        return await continuation(details)


class CountingHandle(HandleTransport):
    """The front's Serve handle."""

    num_calls = 0

    async def unary(self, *args: Any) -> Any:
        self.num_calls += 1
        return await super().unary(*args)


class World:
    """One node's agent on a server of its own, and the front over it."""

    def __init__(self, address: str, counting: Counting, nodes: KnownNodes) -> None:
        self.address, self.counting = address, counting
        self.handle = CountingHandle(FrontHandlers(ClusterStore(nodes, "home")))
        self.front = NodeFilesClient(self.handle)

    def hops(self) -> tuple[int, int]:
        """Through the front's handle, and to the agent."""
        return self.handle.num_calls, self.counting.calls[f"/{NODE_SERVICE}/Open"]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    nodes, counting = KnownNodes(), Counting()
    agent = agent_on(tmp_path, "home", nodes)
    server, address = await start_server(agent, "127.0.0.1", interceptors=[counting])
    async with grpc.aio.insecure_channel(address) as channel:
        nodes.stores["home"] = AgentClient.of(channel)
        yield World(address, counting, nodes)
    await server.stop(None)
    await agent.close()


async def test_a_local_open_is_one_call_and_through_the_front_it_was_two(world: World) -> None:
    async def find() -> str:
        return world.address

    await OwnNode(find, world.front).open(CTX, [A], "home")
    assert world.hops() == (0, 1)
    await world.front.open(CTX, [A], "home")
    assert world.hops() == (1, 2), "by the handle to the front, and from there to the agent"


async def test_without_an_agent_the_front_answers(world: World) -> None:
    async def find() -> str:
        raise Unavailable("none")

    await OwnNode(find, world.front).open(CTX, [A], "home")
    assert world.hops() == (1, 1)


async def test_nothing_that_is_between_nodes_is_answered_on_the_public_port(tmp_path: Path) -> None:
    nodes = KnownNodes()
    agent = agent_on(tmp_path, "home", nodes)
    handlers = FrontHandlers(ClusterStore(nodes, "home"))
    async with public_server(handlers) as address, grpc.aio.insecure_channel(address) as channel:
        for service, names in ((NODE_SERVICE, methods(kv_store_node_pb2)), (SERVICE, INTERNAL)):
            for name in names:
                call: Any = channel.unary_unary(f"/{service}/{name}")
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call(b"")
                assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED, (service, name)
    await agent.close()


def test_no_public_service_has_a_method_by_whose_name_the_front_could_be_asked_for_files() -> None:
    """Serve's proxy calls the method of that name on whichever application the metadata names."""
    files = {name for name in vars(FileHandlers) if not name.startswith("_")}
    assert files == {"Open", "Stage", "Adopt", "Chain"}
    assert not INTERNAL & set().union(*map(methods, PUBLIC))


def test_public_answers_hold_no_address_of_a_node() -> None:
    assert "location" not in kv_store_pb2.ChunkStat.DESCRIPTOR.fields_by_name
    assert "held" not in kv_store_pb2.StatRequest.DESCRIPTOR.fields_by_name
