"""Stores to hold against the contracts of ``shared.kv_stores``: one node's alone, one node's over gRPC,
a cluster's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import grpc
from google.protobuf.message import Message

from cluster.compose import servicer_functions
from services.kv_store.blobs.disk import Disk, VolatileDisk
from services.kv_store.blobs.protocol import Blobs
from services.kv_store.config import KvStoreConfig, MemoryConfig
from services.kv_store.documents.quotas import QuotaConfig
from services.kv_store.fetching.config import FetchConfig
from services.kv_store.fetching.flight import FlightReader, Flights, FlightServer, ReadChunk, Write
from services.kv_store.handlers import StoreHandlers
from services.kv_store.node.agent import Agent
from services.kv_store.node.builder import Node, build_node, build_tiers
from services.kv_store.node.chunks import NodeTiers
from services.kv_store.node.cluster_store import ClusterStore
from services.kv_store.node.handlers import FileHandlers, start_server
from services.kv_store.tiers.builder import Machine
from services.kv_store.tiers.local import LEASE_S
from shared.clients.grpc_transport import CHANNEL_OPTIONS, GrpcTransport
from shared.clients.kv_node import AgentClient, NodeFilesClient
from shared.clients.kv_store import APPLICATION, SERVICE, KvStoreClient
from shared.clients.transport import ResponseT, Transport
from shared.errors import CorruptData, NotFound, Unavailable
from shared.kv_format import SealKeys
from shared.kv_stores import NodeAgent, NodeFiles, Store
from shared.kv_types import ChunkPage, DeletedChunks
from shared.limits import DEFAULT_LIMITS, RequestLimits
from shared.request import RequestContext


class MemoryFlights:
    """``Flights`` between nodes of one process: no socket, same bytes."""

    def __init__(self) -> None:
        self._reading: dict[str, ReadChunk] = {}

    def stream(self, node_id: str, read: ReadChunk) -> MemoryStreaming:
        self._reading[f"memory://{node_id}"] = read
        return MemoryStreaming(f"memory://{node_id}")

    def read(
        self, location: str, chunk_id: str, start: int, length: int, write: Write, timeout_s: float
    ) -> None:
        received = 0
        for piece in self._reading[location](chunk_id, start, length):
            write(start + received, memoryview(piece))
            received += len(piece)
        if received != length:
            raise CorruptData(f"chunk {chunk_id}: a node's copy is shorter than it said")

    def close(self) -> None:
        pass


@dataclass
class MemoryStreaming:
    location: str

    def close(self) -> None:
        pass


class KnownNodes:
    """``Nodes`` whose stores are given. The first is home."""

    def __init__(self, stores: dict[str, NodeAgent] | None = None) -> None:
        self.stores = stores or {}
        self.flights = MemoryFlights()
        self.down: set[str] = set()
        self.suspected: list[str] = []

    def home(self) -> str:
        return next(iter(self.stores))

    def ids(self) -> Sequence[str]:
        return list(self.stores)

    async def store(self, node_id: str) -> NodeAgent:
        if node_id in self.down:
            raise Unavailable(f"{node_id} is down")
        if node_id not in self.stores:
            raise NotFound(f"{node_id} is unknown")
        return self.stores[node_id]

    def suspect(self, node_id: str) -> None:
        self.suspected.append(node_id)


def config_in(
    directory: Path,
    *,
    capacity_bytes: int = 0,
    memory_bytes: int | None = None,
    lease_s: float = LEASE_S,
    fetch: FetchConfig | None = None,
    prefer_peers: bool = False,
    quotas: QuotaConfig | None = None,
    sharing_scopes: dict[str, tuple[str, ...]] | None = None,
    resident_floor: float = 0.1,
    limits: RequestLimits = DEFAULT_LIMITS,
) -> KvStoreConfig:
    """``memory_bytes`` None: no tier in memory."""
    return KvStoreConfig(
        str(directory),
        disk_capacity_bytes=capacity_bytes,
        memory=MemoryConfig(str(directory / "memory"), memory_bytes or 0),
        lease_s=lease_s,
        fetch=fetch or FetchConfig(),
        prefer_peers=prefer_peers,
        quotas=quotas or QuotaConfig(),
        sharing_scopes=sharing_scopes or {},
        resident_floor=resident_floor,
        limits=limits,
    )


@dataclass
class OpenMemory:
    """A memory tier's directory that nobody claims, so that a node can be built anew where another died."""

    path: Path

    def remove(self) -> None:
        pass


async def give_way(seconds: float) -> None:
    """Sleeps by turns of the event loop instead of by a clock: a thousand are a second."""
    for _ in range(1 + int(1000 * seconds)):
        await asyncio.sleep(0)


def machine(
    disk: Disk, memory_disk: Disk | None = None, clock: Callable[[], float] = time.monotonic
) -> Machine:
    return Machine(disk, memory_disk or VolatileDisk(), OpenMemory, clock, give_way)


def tiers_in(
    directory: Path,
    disk: Disk | None = None,
    objects: Blobs | None = None,
    *,
    memory_disk: Disk | None = None,
    clock: Callable[[], float] = time.monotonic,
    keys: SealKeys | None = None,
    **settings: Any,
) -> NodeTiers:
    """Tiers of one node; ``settings`` as in ``config_in``."""
    return build_tiers(
        config_in(directory, **settings),
        objects,
        machine(disk or Disk(), memory_disk or VolatileDisk(), clock),
        keys,
    )[0]


def node_on(
    directory: Path,
    node_id: str,
    nodes: KnownNodes,
    disk: Disk | None = None,
    objects: Blobs | None = None,
    *,
    flights: Flights | None = None,
    host: str = "127.0.0.1",
    clock: Callable[[], float] = time.monotonic,
    keys: SealKeys | None = None,
    **settings: Any,
) -> Node:
    """One of ``nodes`` from now on. Chunks go between nodes by ``nodes.flights`` unless others are given:
    then from ``host``, where the others read them."""
    nodes.stores.setdefault(node_id, cast(NodeAgent, None))
    stream = partial(nodes.flights.stream, node_id) if flights is None else partial(FlightServer, host)
    config = config_in(directory, **settings)
    stands_on = machine(disk or Disk(), clock=clock)
    node = build_node(node_id, config, nodes, stream, objects, flights or nodes.flights, stands_on, keys)
    nodes.stores[node_id] = node.agent
    return node


def agent_on(
    directory: Path,
    node_id: str,
    nodes: KnownNodes,
    disk: Disk | None = None,
    objects: Blobs | None = None,
    **settings: Any,
) -> Agent:
    return node_on(directory, node_id, nodes, disk, objects, **settings).agent


@asynccontextmanager
async def over_grpc(agent: NodeAgent) -> AsyncGenerator[AgentClient, None]:
    """A client of ``agent`` through a real server."""
    server, address = await start_server(agent, "127.0.0.1")
    channel = grpc.aio.insecure_channel(address)
    try:
        yield AgentClient.of(channel)
    finally:
        await channel.close()
        await server.stop(grace=None)


class FrontHandlers(StoreHandlers, FileHandlers):
    """What ``services.kv_store.app.KvStoreFront`` answers."""

    def __init__(self, front: ClusterStore) -> None:
        StoreHandlers.__init__(self, front)
        FileHandlers.__init__(self, front)


class WholeStore(Store, NodeFiles, Protocol):
    """The cluster's by its front, or one node's; and which chunks it has, which home alone tells."""

    async def list_page(self, ctx: RequestContext, start_after: str = "", limit: int = 0) -> ChunkPage: ...
    async def delete(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> DeletedChunks: ...


class FrontClient(NodeFilesClient, KvStoreClient):
    """The front by both ways in: the public port, and its handle. What it does not answer, ``home`` does."""

    def __init__(self, public: Transport, handle: Transport, home: NodeAgent) -> None:
        KvStoreClient.__init__(self, public)
        NodeFilesClient.__init__(self, handle)
        self.list_page, self.delete = home.list_page, home.delete
        self.delete_manifest = KvStoreClient(handle).delete_manifest


class FrontWithHome(ClusterStore):
    """The front's store. What it does not answer, the home node does."""

    def __init__(self, nodes: KnownNodes, own_node_id: str) -> None:
        super().__init__(nodes, own_node_id)
        home = nodes.stores[nodes.home()]
        self.list_page, self.delete = home.list_page, home.delete


@asynccontextmanager
async def front_over_grpc(front: FrontWithHome) -> AsyncGenerator[FrontClient, None]:
    """A client of the front through a server with the services of the public port."""
    handlers = FrontHandlers(front)
    async with public_server(handlers) as address, grpc.aio.insecure_channel(address) as channel:
        public = GrpcTransport(channel, SERVICE, APPLICATION)
        yield FrontClient(public, HandleTransport(handlers), cast(NodeAgent, front))


@asynccontextmanager
async def public_server(handlers: StoreHandlers, host: str = "127.0.0.1") -> AsyncGenerator[str, None]:
    """The address of a server with those services that Serve's proxy has of the store."""
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    for function in servicer_functions():
        if function.endswith(".add_kv_store"):
            module, _, name = function.rpartition(".")
            getattr(import_module(module), name)(handlers, server)
    port = server.add_insecure_port(f"{host}:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(grace=None)


class HandleTransport:
    """Calls handlers as a Serve handle does: by the names of their methods, without a gRPC context."""

    def __init__(self, handlers: object) -> None:
        self._handlers = handlers

    async def unary(
        self, method: str, request: Message, response_type: type[ResponseT], timeout_s: float
    ) -> ResponseT:
        response: ResponseT = await asyncio.wait_for(getattr(self._handlers, method)(request), timeout_s)
        return response

    async def stream(
        self, method: str, request: Message, response_type: type[ResponseT], timeout_s: float
    ) -> AsyncGenerator[ResponseT, None]:
        async with asyncio.timeout(timeout_s):
            async for response in getattr(self._handlers, method)(request):
                yield response


@asynccontextmanager
async def cluster(
    directory: Path, node_ids: Sequence[str], objects: Blobs | None = None
) -> AsyncGenerator[tuple[FrontWithHome, dict[str, Agent], KnownNodes], None]:
    """Agents that reach each other over gRPC and Arrow Flight, as they do on Ray nodes, and the front's store
    over them."""
    known = KnownNodes()
    nodes = [node_on(directory / n, n, known, objects=objects, flights=FlightReader()) for n in node_ids]
    async with AsyncExitStack() as stack:
        for node_id, node in zip(node_ids, nodes, strict=True):
            known.stores[node_id] = await stack.enter_async_context(over_grpc(node.agent))
        yield (
            FrontWithHome(known, node_ids[0]),
            {n: node.agent for n, node in zip(node_ids, nodes, strict=True)},
            known,
        )
    for node in nodes:
        await node.close()


async def in_pieces(data: bytes, size: int = 500) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]
