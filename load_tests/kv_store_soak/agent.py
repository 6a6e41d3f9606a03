"""One agent of kv_store in a process of its own, without Ray: ``python -m
load_tests.kv_store_soak.agent DIRECTORY`` prints where it serves.

Tiers are as in production, with capacities that the options set; keys of the object store come from the
environment.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from services.kv_store.config import KvStoreConfig, MemoryConfig
from services.kv_store.documents.documents import Documents, keep_synced
from services.kv_store.handlers import KvStoreHandlers, start_server
from services.kv_store.node.agent import Agent
from services.kv_store.node.chunks import NodeTiers
from services.kv_store.s3.bucket import ObjectBlobs
from services.kv_store.s3.settings import ObjectSettings
from services.kv_store.tiers.building import OwnTiers
from shared.errors import KvquiltError, NotFound
from shared.kv_types import KvStore
from shared.request import RequestContext

NODE_ID = "only"
_TIDY_S = 0.5


class OnlyNode:
    """``services.kv_store.fetching.nodes.Nodes`` of one."""

    agent: KvStore

    def home(self) -> str:
        return NODE_ID

    def ids(self) -> Sequence[str]:
        return [NODE_ID]

    async def store(self, node_id: str) -> KvStore:
        if node_id != NODE_ID:
            raise NotFound(f"node {node_id!r}: there is only {NODE_ID!r}")
        return self.agent

    def suspect(self, node_id: str) -> None: ...


def settings(directory: Path, memory: Path, disk_bytes: int, memory_bytes: int) -> KvStoreConfig:
    return KvStoreConfig(
        str(directory),
        disk_capacity_bytes=disk_bytes,
        memory=MemoryConfig(str(memory), memory_bytes),
        lease_s=1.0,
    )


def build_agent(config: KvStoreConfig, objects: ObjectSettings | None) -> tuple[Agent, Documents, OwnTiers]:
    """Looks at every file that is there."""
    directory, nodes = Path(config.directory), OnlyNode()
    blobs = None if objects is None else ObjectBlobs(objects)
    own = OwnTiers(directory, config, objects=blobs is not None)
    documents = Documents(directory, objects=blobs)
    agent = Agent(NODE_ID, NodeTiers(own.disk, own.memory, blobs, config.fetch), documents, nodes)
    nodes.agent = agent
    return agent, documents, own


async def serve(config: KvStoreConfig, objects: ObjectSettings | None) -> None:
    agent, documents, _ = build_agent(config, objects)
    syncing = asyncio.create_task(keep_synced(documents)) if objects is not None else None
    server, address = await start_server(KvStoreHandlers(agent), "127.0.0.1")
    print(address, flush=True)
    while syncing is None or not syncing.done():
        try:
            await agent.recover(RequestContext.create())
        except KvquiltError as error:
            print(f"recovering failed: {error.detail}", file=sys.stderr)
        await asyncio.sleep(_TIDY_S)
    await server.stop(None)


def object_settings(endpoint: str) -> ObjectSettings | None:
    """Of a server on this machine; empty: none."""
    return replace(ObjectSettings(endpoint=endpoint, secure=False), retry_s=3.0) if endpoint else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--memory", type=Path, required=True, help="directory of the tier in shared memory")
    parser.add_argument("--disk-bytes", type=int, default=0)
    parser.add_argument("--memory-bytes", type=int, default=0)
    parser.add_argument("--endpoint", default="", help="of an S3-compatible server without TLS")
    args = parser.parse_args()
    config = settings(args.directory, args.memory, args.disk_bytes, args.memory_bytes)
    asyncio.run(serve(config, object_settings(args.endpoint)))


if __name__ == "__main__":
    main()
