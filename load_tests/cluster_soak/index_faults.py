"""Lets a Milvus server be away, or take calls and answer none."""

from __future__ import annotations

import asyncio

from load_tests.cluster_soak.fault import DOWN_S, Fault, Strike, down
from load_tests.servers.milvus import MilvusServer


def index_faults(server: MilvusServer, killing_retrieval: Strike) -> list[Fault]:
    return [
        Fault(f"Milvus down for {DOWN_S:g} s", lambda: down(server)),
        Fault(f"Milvus hangs for {DOWN_S:g} s", lambda: _hangs(server)),
        Fault("Milvus down, retrieval killed", lambda: down(server, killing_retrieval)),
    ]


async def _hangs(server: MilvusServer) -> None:
    server.hang()
    try:
        await asyncio.sleep(DOWN_S)
    finally:
        server.go_on()
