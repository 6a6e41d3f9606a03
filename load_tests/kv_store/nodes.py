"""One node's store in this process, without Ray: what benchmarks of the agent run on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from services.kv_store.blobs.protocol import Blobs
from services.kv_store.config import KvStoreConfig, MemoryConfig
from services.kv_store.fetching.config import FetchConfig
from services.kv_store.fetching.flight import FlightServer
from services.kv_store.node.agent import Agent
from services.kv_store.node.builder import Node, build_node
from shared.errors import NotFound
from shared.kv_stores import NodeAgent
from shared.principals.config import AuthConfig
from shared.seals import seal_keys_of

_NODE = "only"


class OnlyNode:
    """``services.kv_store.fetching.nodes.Nodes`` of a cluster of one, which nobody else asks."""

    def home(self) -> str:
        return _NODE

    def ids(self) -> Sequence[str]:
        return [_NODE]

    async def store(self, node_id: str) -> NodeAgent:
        raise NotFound(f"node {node_id!r}: there is only {_NODE!r}")

    def suspect(self, node_id: str) -> None: ...


def only_node(config: KvStoreConfig, objects: Blobs | None = None) -> Node:
    """Looks at every file that is there."""
    keys = seal_keys_of(config.auth) if config.auth.secret_file else None
    return build_node(_NODE, config, OnlyNode(), partial(FlightServer, "127.0.0.1"), objects, keys=keys)


@asynccontextmanager
async def disk_node(
    directory: Path,
    objects: Blobs | None = None,
    fetch: FetchConfig | None = None,
    auth: AuthConfig | None = None,
) -> AsyncGenerator[Agent, None]:
    """Its chunks lie on disk, and in ``objects`` if given; none in shared memory. ``auth``: whose secret
    seals them; None: nothing is sealed."""
    directory.mkdir(parents=True, exist_ok=True)
    no_memory = MemoryConfig(capacity_bytes=0)
    config = KvStoreConfig(
        str(directory.absolute()),
        memory=no_memory,
        fetch=fetch or FetchConfig(),
        auth=auth or AuthConfig(),
    )
    node = only_node(config, objects)
    try:
        yield node.agent
    finally:
        await node.close()
