"""Puts one node of the store together, from settings: tiers, fetching, documents, upkeep and agent.

Whoever runs a node, on Ray, in a benchmark or in a test, builds it here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from services.kv_store.blobs.directory import DirectoryBlobs
from services.kv_store.blobs.protocol import Blobs
from services.kv_store.blobs.staging import Staging
from services.kv_store.config import KvStoreConfig
from services.kv_store.documents.documents import Documents
from services.kv_store.documents.items import Items
from services.kv_store.documents.leftovers import Leftovers
from services.kv_store.documents.quotas import Quotas
from services.kv_store.fetching.flight import FlightReader, Flights, ReadChunk
from services.kv_store.fetching.nodes import Nodes
from services.kv_store.node.agent import Agent
from services.kv_store.node.chunks import NodeTiers
from services.kv_store.tiers.builder import Machine, OwnTiers
from shared.kv_format import SealKeys
from shared.private_files import make_private
from shared.sharing import SharingScopes


class Streaming(Protocol):
    """A running ``FlightServer``."""

    location: str

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Node:
    agent: Agent
    documents: Documents
    streaming: Streaming
    own: OwnTiers

    async def close(self) -> None:
        """Nothing stays in memory. What was acknowledged is durable already."""
        await asyncio.to_thread(self.streaming.close)
        await self.agent.close()
        await asyncio.to_thread(self.own.remove_memory)


def build_node(
    node_id: str,
    config: KvStoreConfig,
    nodes: Nodes,
    stream: Callable[[ReadChunk], Streaming],
    objects: Blobs | None = None,
    flights: Flights | None = None,
    machine: Machine | None = None,
    keys: SealKeys | None = None,
) -> Node:
    """``stream`` starts what other nodes read chunks from, ``flights`` reads from theirs. ``keys``: see
    ``WritableTiers``. Blocks: looks at every file that is there.

    Raises:
        StorageFull, InternalError: the directory cannot be used.
    """
    machine = machine or Machine()
    make_private(Path(config.directory))
    tiers, own = build_tiers(config, objects, machine, keys)
    at_home = nodes.home() == node_id
    documents = Documents(Path(config.directory), machine.disk, objects if at_home else None, keys)
    root = Path(config.directory)
    local = DirectoryBlobs(root / "items", Staging(root / "staging-items", machine.disk), machine.disk)
    in_objects = at_home and objects is not None
    items = Items(objects if in_objects and objects is not None else local, keys)
    streaming = stream(tiers.read)
    quotas = Quotas(config.quotas, config.limits.per_principal)
    agent = Agent(
        node_id,
        tiers,
        documents,
        nodes,
        flights or FlightReader(),
        streaming.location,
        quotas,
        Leftovers(quotas, config.garbage.grace_s, machine.clock),
        config.stale_staging_s,
        machine.clock,
        SharingScopes(config.sharing_scopes),
        items,
        local if in_objects else None,
    )
    return Node(agent, documents, streaming, own)


def build_tiers(
    config: KvStoreConfig,
    objects: Blobs | None = None,
    machine: Machine | None = None,
    keys: SealKeys | None = None,
) -> tuple[NodeTiers, OwnTiers]:
    """A node's tiers with the object store behind them, and its own alone. Blocks and raises like
    ``build_node``."""
    own = OwnTiers(Path(config.directory), config, objects is not None, machine, keys)
    sleep = (machine or Machine()).sleep
    return NodeTiers(own.disk, own.memory, objects, config, sleep, keys), own
