"""Two tenants of one agent: however many chunks one of them reads, the other's last ones stay in the node's
tiers."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.kv_store.fetching.config import FetchConfig
from services.kv_store.node.agent import Agent
from shared.clients.kv_node import AgentClient
from shared.request import RequestContext
from tests.dict_blobs import DictBlobs
from tests.kv_chunks import chunk_bytes, chunk_id_of
from tests.kv_stores import KnownNodes, agent_on, in_pieces, over_grpc

QUIET, FLOOD = [chunk_id_of(n) for n in range(4)], [chunk_id_of(n) for n in range(4, 44)]
SIZE = max(len(chunk_bytes(c)) for c in QUIET + FLOOD)
ROOM = 10 * SIZE


def context(tenant: str) -> RequestContext:
    return RequestContext.create(tenant=tenant, deadline_ms=60_000)


async def opened(agent: Agent, client: AgentClient, tenant: str, chunk_ids: list[str], times: int) -> None:
    for chunk_id in chunk_ids:
        for _ in range(times):
            (chunk,) = await client.open(context(tenant), [chunk_id])
            assert chunk.exists
            if (promotion := agent._tiers._promotion) is not None:
                await promotion.idle()


@pytest.mark.parametrize("floor", [0.0, 0.2])
@pytest.mark.parametrize("tier", ["memory", "disk"])
async def test_a_flood_leaves_another_tenants_floor_in_the_tier(
    tmp_path: Path, tier: str, floor: float
) -> None:
    in_memory = tier == "memory"
    agent = agent_on(
        tmp_path,
        "home",
        KnownNodes(),
        objects=None if in_memory else DictBlobs(),
        memory_bytes=ROOM if in_memory else None,
        capacity_bytes=0 if in_memory else ROOM,
        lease_s=0.0,
        fetch=FetchConfig(copy_from_miss=1),
        resident_floor=floor,
    )
    for tenant, chunk_ids in {"quiet": QUIET, "flood": FLOOD}.items():
        for chunk_id in chunk_ids:
            data = chunk_bytes(chunk_id)
            await agent.put(context(tenant), chunk_id, len(data), in_pieces(data))
    async with over_grpc(agent) as client:
        await opened(agent, client, "quiet", QUIET, times=2)
        await opened(agent, client, "flood", FLOOD, times=4)
        held = getattr(agent._tiers, tier)
        assert held.num_evictions > 0, "there was no flood"
        kept = [c for c in QUIET if held.find(c) is not None]
        assert kept == (QUIET[2:] if floor else [])
        (stats,) = held.stats()[:1]
        assert stats.num_bytes <= ROOM
        agent.check_invariants()
    await agent.close()
