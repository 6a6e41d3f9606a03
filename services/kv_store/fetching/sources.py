"""Fetches chunks for a node from places that it does not have: the object store, and other nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Protocol

from services.kv_store.blobs.protocol import Blobs, Span
from services.kv_store.fetching.flight import Flights
from services.kv_store.fetching.nodes import Neighbours
from services.kv_store.tiers.chunk_names import blob_of
from services.kv_store.tiers.object_chunks import read_tail
from shared.errors import NotFound
from shared.kv_types import PeerCopy
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
        """Returns how long the file is, and its last ``length`` bytes (all of a shorter one); None: it is not
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
    """Another node, which streams by Arrow Flight."""

    kind = "peer"

    def __init__(self, flights: Flights, copy: PeerCopy) -> None:
        self._flights, self._copy = flights, copy

    async def end(self, length: int) -> tuple[int, bytes] | None:
        size_bytes = self._copy.size_bytes
        start = max(size_bytes - length, 0)
        tail = bytearray(size_bytes - start)

        def write(offset: int, piece: bytes | memoryview) -> None:
            tail[offset - start : offset - start + len(piece)] = piece

        await asyncio.to_thread(self.read, start, len(tail), write)
        return size_bytes, bytes(tail)

    def read(self, start: int, length: int, write: Write) -> None:
        self._flights.read(self._copy.location, self._copy.chunk_id, start, length, write, _PEER_COPY_S)


class PeerSearch:
    """Finds which other nodes have which of some chunks: asked once for all of them, and only when the first
    one is looked for. The asker's deadline does not count, for others may wait for the same chunks. ``ctx``:
    the asker's."""

    def __init__(
        self,
        neighbours: Neighbours,
        ctx: RequestContext,
        chunk_ids: Sequence[str],
        flights: Flights,
    ) -> None:
        self._neighbours, self.ctx = neighbours, ctx
        self._chunk_ids, self._flights = chunk_ids, flights
        self._asking: asyncio.Task[dict[str, list[Source]]] | None = None

    async def sources(self, chunk_id: str) -> list[Source]:
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        return (await asyncio.shield(self._asking)).get(chunk_id, [])

    async def _ask(self) -> dict[str, list[Source]]:
        """Nodes that do not answer soon have nothing."""
        soon = replace(self.ctx, deadline_s=time.monotonic() + _PEER_TIMEOUT_S)
        answers, _ = await self._neighbours.ask(lambda peer: peer.local_copies(soon, self._chunk_ids))
        sources: dict[str, list[Source]] = {}
        for copies in answers.values():
            for copy in copies:
                sources.setdefault(copy.chunk_id, []).append(FlightSource(self._flights, copy))
        return sources
