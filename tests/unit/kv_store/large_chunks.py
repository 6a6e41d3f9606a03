"""Chunks of several parts, and what tests do with a node's tiers that hold them."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from services.kv_store.fetching.config import FetchConfig
from services.kv_store.fetching.flight import FlightReader
from services.kv_store.fetching.nodes import Neighbours
from services.kv_store.fetching.sources import PeerSearch
from services.kv_store.node.chunks import NodeTiers
from services.kv_store.node.copies import NodeCopies
from shared.kv_format import ChunkFile, write_chunk
from shared.kv_types import OpenedChunk
from shared.request import RequestContext
from tests.kv_chunks import chunk_id_of, header_of, kv_of
from tests.kv_stores import KnownNodes

A, B, C = (chunk_id_of(n) for n in range(3))


NUM_LAYERS = 4


SMALL_PARTS = FetchConfig(concurrency=3, part_bytes=40_000, timeout_s=5)


Make = Callable[..., NodeTiers]


@functools.cache
def large(chunk_id: str, seed: int = 0) -> bytes:
    """Of several parts."""
    with tempfile.TemporaryDirectory() as directory:
        header = header_of(layers=NUM_LAYERS, heads=2, tokens=100, head_dim=64, chunk_id=chunk_id)
        write_chunk(Path(directory) / "c", header, *kv_of(header, seed))
        return (Path(directory) / "c").read_bytes()


SIZE = len(large(A))


def copies_of(tiers: NodeTiers) -> NodeCopies:
    return NodeCopies(tiers, lambda chunk_id: nobody(), with_objects=False)


def nobody() -> PeerSearch:
    return PeerSearch(Neighbours("here", KnownNodes()), RequestContext.create(), [], FlightReader())


async def open_one(tiers: NodeTiers, chunk_id: str = A) -> OpenedChunk:
    return (await tiers.open([chunk_id], nobody()))[0]


async def put(
    tiers: NodeTiers, chunk_id: str = A, seed: int = 0, *, replace: bool = False, write_back: bool = False
) -> bool:
    staged = tiers.disk.staging.new()
    staged.write_bytes(large(chunk_id, seed))
    existed = await tiers.put(chunk_id, staged, replace, write_back)
    assert not staged.exists()
    return existed


async def whole(tiers: NodeTiers, chunk_id: str = A) -> bytes:
    """The file once it has arrived."""
    await tiers.fetched(chunk_id, nobody())
    return Path((await open_one(tiers, chunk_id)).path).read_bytes()


def bytes_in(tiers: NodeTiers) -> dict[str, int]:
    return {s.tier: s.num_bytes for s in tiers.stats()[0]}


def counter(tiers: NodeTiers, name: str) -> int:
    return tiers.stats()[1].get(name, 0)


def read_layers(opened: OpenedChunk) -> bool:
    """Reads every layer as the engine does, waiting for those that have not arrived."""
    with ChunkFile.open(opened.path, opened.layers, A, opened.progress) as file:
        header = file.header
        for layer in range(header.num_layers):
            file.read_layer(
                layer,
                *(np.empty((header.num_kv_heads, *b.shape), f"u{b.item_bytes}") for b in header.buffers),
            )
    return True
