"""Lets a Milvus server be away, or take calls and answer none."""

from __future__ import annotations

import asyncio

from load_tests.cluster_soak.fault import DOWN_S, Fault, Strike
from load_tests.servers.milvus import MilvusServer


def index_faults(server: MilvusServer, killing_retrieval: Strike) -> list[Fault]:
    return [
        Fault(f"Milvus down for {DOWN_S:g} s", lambda: _down(server)),
        Fault(f"Milvus hangs for {DOWN_S:g} s", lambda: _hangs(server)),
        Fault("Milvus down, retrieval killed", lambda: _down(server, killing_retrieval)),
    ]


async def _down(server: MilvusServer, meanwhile: Strike | None = None) -> None:
    await asyncio.to_thread(server.stop)
    try:
        if meanwhile is not None:
            await meanwhile()
        await asyncio.sleep(DOWN_S)
    finally:
        await asyncio.to_thread(server.start)


async def _hangs(server: MilvusServer) -> None:
    server.hang()
    try:
        await asyncio.sleep(DOWN_S)
    finally:
        server.go_on()
