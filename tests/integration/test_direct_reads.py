"""Chunks that an engine receives from a real S3 server itself, by a URL that its node's agent signed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from load_tests.kv_store.nodes import disk_node
from load_tests.kv_store.stored_chunks import ChunkShape, write_random_chunk
from load_tests.servers.s3 import S3Server
from services.kv_store.node.agent import Agent
from services.kv_store.s3.bucket import ObjectBlobs
from services.kv_store.tiers.chunk_names import blob_of
from shared.engine.kv.chunk_reads import Loaded
from shared.engine.kv.loader import ChunkLoad, Loader
from shared.errors import KvquiltError, NotFound
from shared.kv_format import ChunkFile
from shared.request import RequestContext
from shared.stored_segments.source import StoreSegmentSource
from shared.threads import events_of
from tests.integration.test_object_store_faults import self_signed
from tests.minio_server import impatient, new_bucket, settings_for

SHAPE = ChunkShape(layers=6, kv_heads=2, head_dim=64, tokens=96)
Layers = list[tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture
def objects(own_server: S3Server) -> ObjectBlobs:
    return ObjectBlobs(settings_for(own_server.endpoint, retry_s=0.5))


@pytest.fixture
async def node(tmp_path: Path, objects: ObjectBlobs) -> AsyncIterator[Agent]:
    async with disk_node(tmp_path / "node", objects) as agent:
        yield agent


def stored(directory: Path, objects: ObjectBlobs, seed: int = 1) -> tuple[str, Layers]:
    """A chunk in the object store: its id, and what must be read."""
    chunk_id, path = write_random_chunk(directory, SHAPE, seed)
    objects.put_file(blob_of(chunk_id), path)
    with ChunkFile.open(path) as file:
        layers = empty()
        for layer, (k, v) in enumerate(layers):
            file.read_layer(layer, k.view(torch.int16).numpy(), v.view(torch.int16).numpy())
    return chunk_id, layers


def empty() -> Layers:
    size = (SHAPE.kv_heads, SHAPE.tokens, SHAPE.head_dim)
    return [
        (torch.zeros(size, dtype=torch.bfloat16), torch.zeros(size, dtype=torch.bfloat16))
        for _ in range(SHAPE.layers)
    ]


class Engine:
    """Reads as the engine's loader threads do, away from the event loop that the agent lives in."""

    def __init__(self, agent: Agent) -> None:
        self._source = StoreSegmentSource(agent, "", asyncio.get_running_loop(), SHAPE.kv)

    async def open(self, chunk_id: str) -> object:
        return (await asyncio.to_thread(self._source.open, {chunk_id: SHAPE.tokens})).get(chunk_id)

    async def check(self, segment: object, layers: Layers, first: int = 0) -> None:
        await asyncio.to_thread(self._check, segment, layers, first)

    def _check(self, segment: object, layers: Layers, first: int) -> None:
        for layer, (k, v) in enumerate(empty()):
            if layer >= first:
                segment.read_layers(range(layer, layer + 1), [k], [v])  # type: ignore[attr-defined]
                for read, right in zip((k, v), layers[layer], strict=True):
                    assert torch.equal(read.view(torch.int16), right.view(torch.int16))


async def counters(agent: Agent) -> dict[str, int]:
    return dict((await agent.stats(RequestContext.create())).nodes[0].counters)


async def test_the_first_miss_goes_to_memory_and_the_second_to_the_disk(
    tmp_path: Path, objects: ObjectBlobs, node: Agent
) -> None:
    chunk_id, layers = stored(tmp_path, objects)
    engine = Engine(node)
    for _ in range(3):
        segment = await engine.open(chunk_id)
        await engine.check(segment, layers)
        segment.close()  # type: ignore[attr-defined]
    counted = await counters(node)
    assert (counted["direct_opens"], counted["object_fetches"]) == (1, 1)


async def test_the_node_brings_what_the_object_store_stops_sending(
    tmp_path: Path, objects: ObjectBlobs, node: Agent, own_server: S3Server
) -> None:
    chunk_id, layers = stored(tmp_path, objects)
    engine = Engine(node)
    segment = await engine.open(chunk_id)
    own_server.stop()
    own_server.start()  # the kept connections are gone
    await engine.check(segment, layers)
    other, lost = stored(tmp_path, objects, seed=2)
    own_server.stop()
    segment = await engine.open(other)
    with pytest.raises(KvquiltError) as told:
        await engine.check(segment, lost)
    assert told.value.retryable
    assert "127.0.0.1" not in told.value.detail
    assert "ignature" not in told.value.detail


async def test_a_chunk_that_is_not_stored_cannot_be_had(
    tmp_path: Path, objects: ObjectBlobs, node: Agent
) -> None:
    chunk_id, layers = stored(tmp_path, objects)
    objects.delete(blob_of(chunk_id))
    engine = Engine(node)
    segment = await engine.open(chunk_id)  # nobody was asked yet
    with pytest.raises(NotFound):
        await engine.check(segment, layers)
    assert await engine.open(chunk_id) is None


async def test_the_engine_is_told_of_chunks_that_are_stored_and_of_those_that_are_not(
    tmp_path: Path, objects: ObjectBlobs, node: Agent
) -> None:
    there, layers = stored(tmp_path, objects)
    lost, _ = stored(tmp_path, objects, seed=2)
    objects.delete(blob_of(lost))
    source = StoreSegmentSource(node, "", asyncio.get_running_loop(), SHAPE.kv)
    loader = Loader(source, SHAPE.spec, num_threads=2)
    load = ChunkLoad({lost: SHAPE.tokens, there: SHAPE.tokens})
    async with asyncio.timeout(30):
        told = await events_of(lambda tell: loader.load(load, tell), 2, Loaded)
    await asyncio.to_thread(loader.close)
    found = {one.key: one.segment for one in told}
    assert found[lost] is None
    read = found[there]
    assert read is not None
    assert read.encoding == "exact"
    assert all(
        torch.equal(x.view(torch.int16), y.view(torch.int16))
        for k_v, *kv in zip(layers, read.k_LKTD, read.v_LKTD, strict=True)
        for x, y in zip(k_v, kv, strict=True)
    )


async def test_a_damaged_object_is_noticed_and_told(
    tmp_path: Path, objects: ObjectBlobs, node: Agent
) -> None:
    chunk_id, layers = stored(tmp_path, objects)
    data = bytearray(b"".join(objects.read(blob_of(chunk_id))))
    data[len(data) // 2] ^= 1
    objects.put(blob_of(chunk_id), bytes(data))
    engine = Engine(node)
    segment = await engine.open(chunk_id)
    with pytest.raises(KvquiltError):
        await engine.check(segment, layers)
    counted = await counters(node)
    assert counted["damaged_objects"] == counted["failed_fetches"] > 0, "each fetch that failed found it"
    with suppress(KvquiltError):
        await engine.open(chunk_id)
    after = await counters(node)
    assert after["direct_opens"] == counted["direct_opens"] == 1, "nobody is sent to a damaged object again"


async def test_a_server_with_tls_is_read_by_its_own_authority(tmp_path: Path, s3_server: S3Server) -> None:
    certs = self_signed(tmp_path / "certs")
    server = S3Server(tmp_path / "tls" / "data", s3_server.program, certs)
    keys = tmp_path / "keys.json"
    keys.write_text(f'{{"access_key": "{server.access_key}", "secret_key": "{server.secret_key}"}}')
    chosen = {"bucket": new_bucket(), "credentials_file": str(keys)}
    try:
        objects = impatient(server.endpoint, secure=True, ca_file=str(certs / "public.crt"), **chosen)
        chunk_id, layers = stored(tmp_path, objects)
        async with disk_node(tmp_path / "node", objects) as agent:
            engine = Engine(agent)
            await engine.check(await engine.open(chunk_id), layers)
            counted = await counters(agent)
        assert counted["direct_opens"] == 1
        assert not counted.get("object_fetches")
    finally:
        server.close()
