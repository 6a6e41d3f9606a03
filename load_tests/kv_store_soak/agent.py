"""Runs one agent of kv_store in a process of its own, without Ray: ``python -m
load_tests.kv_store_soak.agent DIRECTORY`` prints where it serves.

Tiers are as in production, with capacities that the options set; keys of the object store come from the
environment.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from load_tests.kv_store.nodes import only_node
from services.kv_store.config import KvStoreConfig, MemoryConfig
from services.kv_store.documents.sync import keep_synced
from services.kv_store.node.builder import Node
from services.kv_store.node.handlers import start_server
from services.kv_store.s3.bucket import ObjectBlobs
from services.kv_store.s3.settings import ObjectSettings
from shared.errors import KvquiltError
from shared.request import RequestContext

_TIDY_S = 0.5


def node_in(directory: Path, memory: Path, disk_bytes: int, memory_bytes: int, endpoint: str) -> Node:
    """Looks at every file that is there. ``endpoint``: of an S3 server on this machine; empty: none."""
    config = KvStoreConfig(
        str(directory),
        disk_capacity_bytes=disk_bytes,
        memory=MemoryConfig(str(memory), memory_bytes),
        lease_s=1.0,
    )
    objects = ObjectSettings(endpoint=endpoint, secure=False, retry_s=3.0)
    return only_node(config, ObjectBlobs(objects) if endpoint else None)


async def serve(args: argparse.Namespace) -> None:
    node = node_in(args.directory, args.memory, args.disk_bytes, args.memory_bytes, args.endpoint)
    syncing = asyncio.create_task(keep_synced(node.documents)) if args.endpoint else None
    server, address = await start_server(node.agent, "127.0.0.1")
    print(address, flush=True)
    while syncing is None or not syncing.done():
        try:
            await node.agent.recover(RequestContext.create())
        except KvquiltError as error:
            print(f"recovering failed: {error.detail}", file=sys.stderr)
        await asyncio.sleep(_TIDY_S)
    await server.stop(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--memory", type=Path, required=True, help="directory of the tier in shared memory")
    parser.add_argument("--disk-bytes", type=int, default=0)
    parser.add_argument("--memory-bytes", type=int, default=0)
    parser.add_argument("--endpoint", default="", help="of an S3-compatible server without TLS")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
