"""An agent in a process of its own: ``python -m tests.integration.kv_agent_process DIRECTORY [OBJECTS]``
prints its address and serves. With a second directory in the place of an object store."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from services.kv_store.blobs.directory import DirectoryBlobs
from services.kv_store.blobs.protocol import Blobs
from services.kv_store.blobs.staging import Staging
from services.kv_store.node.handlers import start_server
from shared.request import RequestContext
from tests.kv_stores import KnownNodes, agent_on


def objects_in(directory: Path) -> Blobs:
    return DirectoryBlobs(directory / "bucket", Staging(directory / "staging"))


async def main(directory: Path, objects: Path | None) -> None:
    agent = agent_on(directory, "home", KnownNodes(), objects=objects_in(objects) if objects else None)
    await agent.recover(RequestContext.create())
    server, address = await start_server(agent, "127.0.0.1")
    print(address, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
