"""An agent in a process of its own: ``python -m tests.integration.kv_agent_process DIRECTORY`` prints its address and serves."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from services.kv_store.handlers import KvStoreHandlers, start_server
from shared.request import RequestContext
from tests.kv_stores import KnownNodes, agent_on


async def main(directory: Path) -> None:
    agent = agent_on(directory, "home", KnownNodes())
    await agent.recover(RequestContext.create())
    server, address = await start_server(KvStoreHandlers(agent), "127.0.0.1")
    print(address, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
