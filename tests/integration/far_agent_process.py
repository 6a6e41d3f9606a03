"""An agent of another node, in a process of its own: ``python -m tests.integration.far_agent_process
DIRECTORY HOST`` prints its address and serves there. It is called ``far``; ``near`` is home."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import cast

from services.kv_store.fetching.flight import FlightReader
from services.kv_store.node.handlers import start_server
from shared.kv_stores import NodeAgent
from tests.kv_stores import KnownNodes, node_on

NEAR, FAR = "near", "far"


async def main(directory: Path, host: str) -> None:
    nodes = KnownNodes({NEAR: cast(NodeAgent, None)})
    node = node_on(directory, FAR, nodes, flights=FlightReader(), host=host)
    server, address = await start_server(node.agent, host)
    print(address, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
