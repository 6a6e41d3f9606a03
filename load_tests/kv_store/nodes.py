"""One node's store in this process, without Ray: what benchmarks of the agent run on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from services.kv_store.blobs.protocol import Blobs
from services.kv_store.documents.documents import Documents
from services.kv_store.node.agent import Agent
from services.kv_store.node.chunks import NodeTiers
from services.kv_store.tiers.local import LocalTier
from shared.errors import NotFound
from shared.kv_types import KvStore

_NODE = "node"


class _Alone:
    """``services.kv_store.fetching.nodes.Nodes`` of a cluster of one."""

    def home(self) -> str:
        return _NODE

    def ids(self) -> Sequence[str]:
        return [_NODE]

    async def store(self, node_id: str) -> KvStore:
        raise NotFound(f"{node_id} is unknown")

    def suspect(self, node_id: str) -> None:
        pass


@asynccontextmanager
async def disk_node(directory: Path, objects: Blobs | None = None) -> AsyncGenerator[Agent, None]:
    """Its chunks lie on disk, and in ``objects`` if given; none in shared memory."""
    directory.mkdir(parents=True, exist_ok=True)
    disk = LocalTier("disk", directory, keeps=True, kept_name="pending" if objects else "")
    agent = Agent(_NODE, NodeTiers(disk, objects=objects), Documents(directory), _Alone())
    try:
        yield agent
    finally:
        await agent.close()
