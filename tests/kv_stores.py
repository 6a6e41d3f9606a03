"""Stores to hold against the contract of ``shared.kv_types.KvStore``: one node's alone, one node's over gRPC,
a cluster's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc

from services.kv_store.blobs.disk import Disk, VolatileDisk
from services.kv_store.blobs.protocol import Blobs
from services.kv_store.documents.documents import Documents
from services.kv_store.fetching.fetch import FetchConfig
from services.kv_store.fetching.flight import FlightServer
from services.kv_store.handlers import KvStoreHandlers, start_server
from services.kv_store.node.agent import Agent
from services.kv_store.node.chunks import NodeTiers
from services.kv_store.node.cluster_store import ClusterStore
from services.kv_store.tiers.local import LEASE_S, LocalTier
from shared.clients.grpc_transport import GrpcTransport
from shared.clients.kv_store import APPLICATION, SERVICE, KvStoreClient
from shared.errors import NotFound, Unavailable
from shared.kv_types import KvStore


class KnownNodes:
    """``Nodes`` whose stores are given. The first is home."""

    def __init__(self, stores: dict[str, KvStore] | None = None) -> None:
        self.stores = stores or {}
        self.down: set[str] = set()
        self.suspected: list[str] = []

    def home(self) -> str:
        return next(iter(self.stores))

    def ids(self) -> Sequence[str]:
        return list(self.stores)

    async def store(self, node_id: str) -> KvStore:
        if node_id in self.down:
            raise Unavailable(f"{node_id} is down")
        if node_id not in self.stores:
            raise NotFound(f"{node_id} is unknown")
        return self.stores[node_id]

    def suspect(self, node_id: str) -> None:
        self.suspected.append(node_id)


def tiers_in(
    directory: Path,
    disk: Disk | None = None,
    objects: Blobs | None = None,
    *,
    memory_disk: Disk | None = None,
    capacity_bytes: int = 0,
    memory_bytes: int | None = None,
    lease_s: float = LEASE_S,
    clock: Callable[[], float] = time.monotonic,
    fetch: FetchConfig | None = None,
    prefer_peers: bool = False,
) -> NodeTiers:
    """Tiers of one node; ``memory_bytes`` None: none in memory."""
    memory = None
    if memory_bytes is not None:
        memory = LocalTier(
            "memory",
            directory / "memory",
            disk=memory_disk or VolatileDisk(),
            capacity_bytes=memory_bytes,
            lease_s=lease_s,
            clock=clock,
        )
    own = LocalTier(
        "disk",
        directory,
        disk=disk,
        keeps=True,
        kept_name="pending" if objects is not None else "",
        capacity_bytes=capacity_bytes,
        lease_s=lease_s,
        clock=clock,
    )
    return NodeTiers(own, memory, objects, fetch, prefer_peers, sleep=give_way)


async def give_way(seconds: float) -> None:
    """Sleeps by turns of the event loop instead of by a clock: a thousand are a second."""
    for _ in range(1 + int(1000 * seconds)):
        await asyncio.sleep(0)


def agent_on(
    directory: Path,
    node_id: str,
    nodes: KnownNodes,
    disk: Disk | None = None,
    objects: Blobs | None = None,
    tiers: NodeTiers | None = None,
    location: str = "",
) -> Agent:
    """With the default ``tiers`` of ``disk`` and ``objects`` unless others are given."""
    agent = Agent(
        node_id,
        tiers or tiers_in(directory, disk, objects),
        Documents(directory, disk, objects),
        nodes,
        location=location,
    )
    nodes.stores[node_id] = agent
    return agent


@asynccontextmanager
async def over_grpc(store: KvStore) -> AsyncGenerator[KvStoreClient, None]:
    """A client of ``store`` through a real server."""
    server, address = await start_server(KvStoreHandlers(store), "127.0.0.1")
    channel = grpc.aio.insecure_channel(address)
    try:
        yield KvStoreClient(GrpcTransport(channel, SERVICE, APPLICATION))
    finally:
        await channel.close()
        await server.stop(grace=None)


@asynccontextmanager
async def cluster(
    directory: Path, node_ids: Sequence[str], objects: Blobs | None = None
) -> AsyncGenerator[tuple[ClusterStore, dict[str, Agent], KnownNodes], None]:
    """Agents that reach each other over gRPC, as they do on Ray nodes, and the front's store over them."""
    nodes = KnownNodes()
    agents = {}
    async with AsyncExitStack() as stack:
        for i, node_id in enumerate(node_ids):
            tiers = tiers_in(directory / node_id, objects=objects)
            flight = FlightServer("127.0.0.1", tiers.read)
            stack.callback(flight.close)
            location = flight.location if i % 2 == 0 else ""  # the others by `get`
            agents[node_id] = agent_on(
                directory / node_id, node_id, nodes, objects=objects, tiers=tiers, location=location
            )
        for node_id, agent in agents.items():
            nodes.stores[node_id] = await stack.enter_async_context(over_grpc(agent))
        yield ClusterStore(nodes, node_ids[0]), agents, nodes
    for agent in agents.values():
        await agent.close()


async def in_pieces(data: bytes, size: int = 500) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]
