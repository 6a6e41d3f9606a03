"""Where a node fetches chunks from that it does not have: the object store, and other nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from services.kv_store.blobs.protocol import Blobs, Span
from services.kv_store.fetching.flight import FlightReader
from services.kv_store.fetching.nodes import Nodes, ask, on_node
from services.kv_store.tiers.chunk_names import blob_of
from services.kv_store.tiers.object_chunks import read_tail
from shared.errors import CorruptData, NotFound
from shared.kv_types import ChunkStat, KvStore
from shared.request import RequestContext

Write = Callable[[int, bytes | memoryview], None]
"""Offset in the file, and what belongs there. May block."""

_PEER_TIMEOUT_S = 5.0
_PEER_COPY_S = 120.0


class Source(Protocol):
    """One place where a chunk's file may be. All raise ``shared.errors``."""

    kind: str
    """What counters call it: ``object`` or ``peer``."""

    async def end(self, length: int) -> tuple[int, bytes] | None:
        """How long the file is, and its last ``length`` bytes (all of a shorter one); None: it is not
        there."""
        ...

    def read(self, start: int, length: int, write: Write) -> None:
        """Writes these bytes, all of them, in their order. Blocks; several threads may read at once."""
        ...


class ObjectSource:
    kind = "object"

    def __init__(self, objects: Blobs, chunk_id: str, threads: Executor) -> None:
        self._objects, self._chunk_id, self._threads = objects, chunk_id, threads

    async def end(self, length: int) -> tuple[int, bytes] | None:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._end, length)

    def read(self, start: int, length: int, write: Write) -> None:
        self._objects.read_to(blob_of(self._chunk_id), Span(start, length), write)

    def _end(self, length: int) -> tuple[int, bytes] | None:
        try:
            return read_tail(self._objects, self._chunk_id, length)
        except NotFound:
            return None


class FlightSource:
    """Another node that streams by Arrow Flight."""

    kind = "peer"

    def __init__(self, flights: FlightReader, stat: ChunkStat) -> None:
        self._flights, self._stat = flights, stat

    async def end(self, length: int) -> tuple[int, bytes] | None:
        return await _end_of(self, self._stat.size_bytes, length)

    def read(self, start: int, length: int, write: Write) -> None:
        self._flights.read(self._stat.location, self._stat.chunk_id, start, length, write, _PEER_COPY_S)


class PeerSource:
    """Another node that streams by the store's own RPC."""

    kind = "peer"

    def __init__(
        self, nodes: Nodes, node_id: str, ctx: RequestContext, chunk_id: str, size_bytes: int
    ) -> None:
        self._nodes, self._node_id, self._ctx = nodes, node_id, ctx
        self._chunk_id, self._size_bytes = chunk_id, size_bytes
        self._loop = asyncio.get_running_loop()

    async def end(self, length: int) -> tuple[int, bytes] | None:
        return await _end_of(self, self._size_bytes, length)

    def read(self, start: int, length: int, write: Write) -> None:
        asyncio.run_coroutine_threadsafe(self._read(start, length, write), self._loop).result(_PEER_COPY_S)

    async def _read(self, start: int, length: int, write: Write) -> None:
        async def receive(peer: KvStore) -> int:
            received = 0
            async with aclosing(peer.get(self._ctx, self._chunk_id, start, length)) as pieces:
                async for piece in pieces:
                    if received + len(piece) > length:
                        raise CorruptData(f"chunk {self._chunk_id}: a node sent more than was asked for")
                    await asyncio.to_thread(write, start + received, piece)
                    received += len(piece)
            return received

        if await on_node(self._nodes, self._node_id, receive) < length:
            raise CorruptData(f"chunk {self._chunk_id}: a node's copy is shorter than it said")


class PeerSearch:
    """Which other nodes have which of some chunks: asked once for all of them, and only when the first one is
    looked for. The asker's deadline does not count, for others may wait for the same chunks."""

    def __init__(
        self,
        nodes: Nodes,
        own_node_id: str,
        ctx: RequestContext,
        chunk_ids: Sequence[str],
        flights: FlightReader,
    ) -> None:
        self._nodes, self._own_node_id, self._ctx, self._chunk_ids = nodes, own_node_id, ctx, chunk_ids
        self._flights = flights
        self._asking: asyncio.Task[dict[str, list[Source]]] | None = None

    async def sources(self, chunk_id: str) -> list[Source]:
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        return (await asyncio.shield(self._asking)).get(chunk_id, [])

    async def _ask(self) -> dict[str, list[Source]]:
        """Nodes that do not answer soon have nothing."""
        others = [n for n in self._nodes.ids() if n != self._own_node_id]
        soon = replace(self._ctx, deadline_s=time.monotonic() + _PEER_TIMEOUT_S)
        answers, _ = await ask(self._nodes, others, lambda peer: peer.stat(soon, self._chunk_ids, held=True))
        sources: dict[str, list[Source]] = {}
        for node_id, stats in answers.items():
            for stat in stats:
                if stat.exists:
                    sources.setdefault(stat.chunk_id, []).append(self._source(node_id, stat))
        return sources

    def _source(self, node_id: str, stat: ChunkStat) -> Source:
        if stat.location:
            return FlightSource(self._flights, stat)
        ctx = replace(self._ctx, deadline_s=time.monotonic() + _PEER_COPY_S)
        return PeerSource(self._nodes, node_id, ctx, stat.chunk_id, stat.size_bytes)


async def _end_of(source: Source, size_bytes: int, length: int) -> tuple[int, bytes]:
    """``Source.end`` of one whose size is known."""
    start = max(size_bytes - length, 0)
    tail = bytearray(size_bytes - start)

    def write(offset: int, piece: bytes | memoryview) -> None:
        tail[offset - start : offset - start + len(piece)] = piece

    await asyncio.to_thread(source.read, start, len(tail), write)
    return size_bytes, bytes(tail)
