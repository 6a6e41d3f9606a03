"""Two nodes that share no disk: what is written on one is read on the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from load_tests.servers.s3 import S3Server
from services.kv_store.blobs.protocol import Blobs
from services.kv_store.fetching.config import FetchConfig
from services.kv_store.fetching.flight import FlightReader
from services.kv_store.node.agent import Agent
from services.kv_store.s3.bucket import ObjectBlobs
from shared.errors import Unavailable
from shared.kv_format import verify_chunk, write_chunk
from shared.kv_stores import NodeFiles
from shared.kv_types import OpenedChunk
from shared.request import RequestContext
from tests.dict_blobs import DictBlobs
from tests.faulty_blobs import FailingBlobs
from tests.kv_chunks import chunk_id_of, header_of, kv_of
from tests.kv_stores import KnownNodes, node_on, over_grpc
from tests.minio_server import settings_for

CHUNK = chunk_id_of(0)
FETCH = FetchConfig(part_bytes=1 << 20)


class TwoNodes:
    """Agents that reach each other over gRPC and Arrow Flight. ``here`` is home."""

    def __init__(self, directory: Path, objects: Blobs | None, prefer_peers: bool = False) -> None:
        self.nodes = KnownNodes()
        self._two = [
            node_on(
                directory / name,
                name,
                self.nodes,
                objects=objects,
                flights=FlightReader(),
                fetch=FETCH,
                prefer_peers=prefer_peers,
            )
            for name in ("here", "there")
        ]
        self.here, self.there = (node.agent for node in self._two)

    async def __aenter__(self) -> TwoNodes:
        self._servers = [over_grpc(agent) for agent in (self.here, self.there)]
        for name, server in zip(("here", "there"), self._servers, strict=True):
            self.nodes.stores[name] = await server.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        for server, node in zip(self._servers, self._two, strict=True):
            await server.__aexit__(None, None, None)
            await node.close()
            node.agent.check_invariants()


def ctx() -> RequestContext:
    return RequestContext.create(deadline_ms=60_000)


async def write(agent: Agent, write_back: bool = False) -> int:
    """A chunk of several parts; its size."""
    path = Path(await agent.stage(ctx())) / "mine"
    header = header_of(layers=4, heads=2, tokens=700, head_dim=256, chunk_id=CHUNK)
    size = write_chunk(path, header, *kv_of(header))
    assert size > 3 * FETCH.part_bytes
    await agent.adopt(ctx(), CHUNK, "", str(path), write_back=write_back)
    return size


async def read(store: NodeFiles) -> OpenedChunk:
    """The chunk once it has arrived."""
    while (opened := (await store.open(ctx(), [CHUNK]))[0]).progress:
        await asyncio.sleep(0.01)
    return opened


async def counters(agent: Agent) -> dict[str, int]:
    return (await agent.stats(ctx())).nodes[0].counters


@pytest.fixture(params=["no object store", "S3 server"])
def objects(request: pytest.FixtureRequest) -> Blobs | None:
    if request.param == "no object store":
        return None
    server: S3Server = request.getfixturevalue("s3_server")
    return ObjectBlobs(settings_for(server.endpoint))


@pytest.fixture
async def two(tmp_path: Path, objects: Blobs | None) -> AsyncIterator[TwoNodes]:
    async with TwoNodes(tmp_path, objects) as two:
        yield two


async def test_a_chunk_written_on_one_is_loaded_on_the_other_once_for_eight_askers(
    two: TwoNodes, objects: Blobs | None
) -> None:
    size = await write(two.there)
    opened = await asyncio.gather(*(two.here.open(ctx(), [CHUNK]) for _ in range(8)))
    assert all(o.exists for (o,) in opened)
    assert (await counters(two.here))["coalesced"] == 7
    assert verify_chunk((await read(two.here)).path).header.chunk_id == CHUNK
    counted = await counters(two.here)
    kind = "peer" if objects is None else "object"
    assert (counted[f"{kind}_fetches"], counted[f"{kind}_bytes"]) == (1, size)
    assert ("peer_fetches" in counted) != ("object_fetches" in counted)


async def test_what_waits_on_one_node_for_the_object_store_is_read_on_the_other(tmp_path: Path) -> None:
    objects = FailingBlobs(DictBlobs(), Unavailable("down"))
    async with TwoNodes(tmp_path, objects) as two:
        await write(two.there, write_back=True)
        assert (await read(two.here)).exists
        assert (await counters(two.here))["peer_fetches"] == 1


@pytest.mark.parametrize("prefer_peers", [False, True])
async def test_the_other_node_is_asked_first_if_that_is_preferred(tmp_path: Path, prefer_peers: bool) -> None:
    async with TwoNodes(tmp_path, DictBlobs(), prefer_peers) as two:
        await write(two.there)
        assert (await read(two.here)).exists
        assert ("peer_fetches" in await counters(two.here)) == prefer_peers


async def test_a_prefetched_chunk_is_there_soon(two: TwoNodes) -> None:
    await write(two.there)
    await two.here.prefetch(ctx(), [CHUNK, CHUNK, chunk_id_of(1)], "here")
    give_up = time.monotonic() + 30
    while not await two.here.local_copies(ctx(), [CHUNK]):
        assert time.monotonic() < give_up
        await asyncio.sleep(0.01)
    assert (await two.here.open(ctx(), [CHUNK]))[0].progress == ""
