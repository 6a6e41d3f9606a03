"""Two nodes of the store with a real network between them, which is cut: nobody waits for long, nothing half
is taken for whole, and all is well when the network is back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from cluster.paths import PROJECT_ROOT
from load_tests.servers.network_namespace import NetworkNamespace, NoNetworkNamespace
from services.kv_store.fetching.config import FetchConfig
from services.kv_store.fetching.flight import FlightReader, Write
from services.kv_store.node.agent import Agent
from shared.clients.grpc_transport import CHANNEL_OPTIONS
from shared.clients.kv_node import AgentClient
from shared.errors import Unavailable
from shared.kv_format import verify_chunk, write_chunk
from shared.kv_types import OpenedChunk
from shared.request import RequestContext
from tests.integration.far_agent_process import FAR, NEAR
from tests.kv_chunks import chunk_id_of, header_of, kv_of, origin_of
from tests.kv_stores import KnownNodes, node_on

BOUNDED_S = 40.0
"""Well above what each call may take, and below what it takes who waits for ever."""
FETCH = FetchConfig(part_bytes=1 << 20, timeout_s=2.0)


class CutFlights(FlightReader):
    """Cuts the network with the first bytes that come, while ``cuts``."""

    def __init__(self, network: NetworkNamespace) -> None:
        super().__init__()
        self._network, self.cuts = network, False

    def read(
        self, location: str, chunk_id: str, start: int, length: int, write: Write, timeout_s: float
    ) -> None:
        def cutting(offset: int, piece: memoryview) -> None:
            if self.cuts:
                self.cuts = False
                self._network.cut()
            write(offset, piece)

        super().read(location, chunk_id, start, length, cutting, timeout_s)


@dataclass
class TwoMachines:
    """``near`` runs here, ``far`` beyond the link."""

    network: NetworkNamespace
    near: Agent
    far: AgentClient
    flights: CutFlights

    async def on_far_disk(self, n: int, tokens: int = 700) -> str:
        """A chunk that only the far node has; written by the disk, which both machines share here."""
        chunk_id = chunk_id_of(n, ctx().tenant, tokens)
        header = header_of(layers=4, heads=2, tokens=tokens, head_dim=256, chunk_id=chunk_id)
        path = Path(await self.far.stage(ctx())) / f"mine-{n}"
        write_chunk(path, header, *kv_of(header))
        await self.far.adopt(ctx(), chunk_id, "", str(path), origin=origin_of(chunk_id))
        return chunk_id

    async def opened(self, chunk_id: str) -> OpenedChunk:
        """By the near node, when what was under way has ended."""
        async with asyncio.timeout(BOUNDED_S):
            while (opened := (await self.near.open(ctx(), [chunk_id]))[0]).progress:
                await asyncio.sleep(0.05)
        return opened


def ctx(deadline_ms: int = 60_000) -> RequestContext:
    return RequestContext.create(deadline_ms=deadline_ms)


@pytest.fixture
def network() -> Iterator[NetworkNamespace]:
    try:
        made = NetworkNamespace()
    except NoNetworkNamespace as reason:
        pytest.skip(str(reason))
    with closing(made):
        yield made


@pytest.fixture
async def two(network: NetworkNamespace, tmp_path: Path) -> AsyncIterator[TwoMachines]:
    command = [
        sys.executable,
        "-m",
        "tests.integration.far_agent_process",
        str(tmp_path / FAR),
        network.there,
    ]
    far = subprocess.Popen(network.command(*command), stdout=subprocess.PIPE, text=True, cwd=PROJECT_ROOT)
    try:
        assert far.stdout is not None
        address = (await asyncio.to_thread(far.stdout.readline)).strip()
        assert address, "the far agent did not start"
        nodes, flights = KnownNodes(), CutFlights(network)
        near = node_on(tmp_path / NEAR, NEAR, nodes, flights=flights, host=network.here, fetch=FETCH)
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            nodes.stores[FAR] = client = AgentClient.of(channel)
            yield TwoMachines(network, near.agent, client, flights)
        await near.close()
        near.agent.check_invariants()
    finally:
        far.kill()
        far.wait()


async def test_what_is_beyond_a_cut_counts_as_absent_and_is_there_again_afterwards(two: TwoMachines) -> None:
    chunk_id, cut_off = await two.on_far_disk(0), await two.on_far_disk(1)
    assert (await two.opened(chunk_id)).exists
    two.network.cut()
    assert not (await two.opened(cut_off)).exists
    assert (await two.opened(chunk_id)).exists, "what is here already stays"
    async with asyncio.timeout(BOUNDED_S):
        with pytest.raises(Unavailable, match="do not answer"):
            await two.near.collect_garbage(ctx(deadline_ms=5000), grace_s=0)
    two.network.heal()
    async with asyncio.timeout(BOUNDED_S):
        while not (opened := await two.opened(cut_off)).exists:
            await asyncio.sleep(0.2)
    assert verify_chunk(opened.path).header.chunk_id == cut_off


async def test_a_chunk_that_is_cut_off_in_the_middle_is_never_whole(two: TwoMachines) -> None:
    chunk_id = await two.on_far_disk(0, tokens=7000)  # more than what connections hold by themselves
    two.flights.cuts = True
    opened = await two.opened(chunk_id)
    assert not two.flights.cuts, "it came before it could be cut off"
    assert not opened.exists
    assert await two.near.local_copies(ctx(), [chunk_id]) == []
    two.network.heal()
    async with asyncio.timeout(BOUNDED_S):
        while not (opened := await two.opened(chunk_id)).exists:
            await asyncio.sleep(0.2)
    assert verify_chunk(opened.path).header.chunk_id == chunk_id
