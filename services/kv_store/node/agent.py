"""One node's part of the store: its tiers and, on the home node, the documents of all."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from services.kv_store.blobs.protocol import Blobs
from services.kv_store.documents.documents import Documents
from services.kv_store.documents.items import Items
from services.kv_store.documents.leftovers import Leftovers
from services.kv_store.documents.manifest_scrub import damage_detail, foreign_detail
from services.kv_store.documents.quotas import Quotas
from services.kv_store.fetching.flight import Flights
from services.kv_store.fetching.nodes import Neighbours, Nodes
from services.kv_store.fetching.sources import PeerSearch
from services.kv_store.node.chunks import NodeTiers
from services.kv_store.node.home import HomeDocuments
from services.kv_store.node.items import HomeItems
from services.kv_store.node.metering import node_readings
from services.kv_store.tiers.chunk_files import check_identity, check_same
from services.kv_store.tiers.chunk_names import DEFAULT_PAGE, LARGEST_PAGE, check_chunk_id, check_chunk_ids
from services.kv_store.tiers.files import FileCopy
from services.kv_store.tiers.object_chunks import all_objects
from services.kv_store.upkeep.upkeep import Upkeep
from shared.clients.health import ServiceHealth
from shared.errors import FailedPrecondition, InvalidRequest, KvquiltError
from shared.kv_reports import NodeStats, StoreStats
from shared.kv_types import ChunkPage, ChunkStat, OpenedChunk, Origin, PeerCopy
from shared.metrics.recorder import MetricReading
from shared.request import RequestContext
from shared.sharing import SharingScopes
from shared.tracing.names import NUM_CHUNKS
from shared.tracing.spans import span

log = logging.getLogger(__name__)
SERVICE = "kv_store"
_LATELY_S = 600.0
_LEAST_ROOM_BYTES = 16 << 20


class Agent:
    """A ``shared.kv_stores.NodeAgent``. What it says about chunks is about this node's; the home
    node answers for the object store, too, and its ``delete`` reaches all nodes."""

    def __init__(
        self,
        node_id: str,
        tiers: NodeTiers,
        documents: Documents,
        nodes: Nodes,
        flights: Flights,
        location: str,
        quotas: Quotas,
        leftovers: Leftovers,
        stale_staging_s: float,
        clock: Callable[[], float],
        scopes: SharingScopes,
        items: Items,
        local_items: Blobs | None = None,
    ) -> None:
        """``flights`` reads from other nodes; ``location``: where they read from this one. ``scopes``: who
        shares KV with whom. ``local_items``: see ``HomeItems``."""
        self._tiers, self._documents, self._neighbours = tiers, documents, Neighbours(node_id, nodes)
        self._stale_staging_s, self._location, self._flights = stale_staging_s, location, flights
        self._clock, self._opened_s, self._scopes = clock, -math.inf, scopes
        self._upkeep = upkeep = Upkeep(self, tiers, documents, self._neighbours, quotas, self._search, items)
        self._home = home = HomeDocuments(self, tiers, documents, self._neighbours, upkeep, scopes, leftovers)
        self._items = kept = HomeItems(items, self._neighbours, upkeep, local_items)
        # Answered by its parts as they are:
        self.put_item, self.get_item = kept.put_item, kept.get_item
        self.item_page, self.delete_item = kept.item_page, kept.delete_item
        self.verify, self.collect_garbage = upkeep.verify, upkeep.collect_garbage
        self.pin, self.list_pins = upkeep.pin, upkeep.list_pins
        self.list_pinned_chunks, self.follow_pins = upkeep.list_pinned_chunks, upkeep.follow_pins
        self.delete, self.put_manifest = home.delete, home.put_manifest
        self.check_quota = home.check_quota
        self.get_manifest, self.manifest_page = home.get_manifest, home.manifest_page
        self.delete_manifest, self.count_documents = home.delete_manifest, home.count_documents
        self.chain, self.readable = home.chain, home.readable

    async def recover(self, ctx: RequestContext) -> None:
        """Goes on with what was left undone: the agent died in between, or a node or the object store did not
        answer."""
        self._tiers.upload_pending()
        await asyncio.to_thread(self._tiers.clean, self._stale_staging_s)
        await self._home.recover(ctx)
        await self._items.recover(self._stale_staging_s)

    async def stat(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[ChunkStat]:
        ids = check_chunk_ids(chunk_ids)
        if self._tiers.objects is None:
            copies = self._found(ids)
        else:
            copies = await self._tiers.stored(ids, ask_objects=self._neighbours.is_home)
        return [_stat(c, copies.get(c)) for c in ids]

    async def local_copies(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[PeerCopy]:
        found = self._found(check_chunk_ids(chunk_ids))
        return [PeerCopy(c, copy.size_bytes, self._location) for c, copy in found.items()]

    async def open(
        self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "", direct: bool = False
    ) -> list[OpenedChunk]:
        self._check_node(node_id)
        ids = check_chunk_ids(chunk_ids)
        self._opened_s = self._clock()
        with span(ctx, "open", {NUM_CHUNKS: len(ids)}) as stage:
            opened = await self._tiers.open(ids, self._search(stage.ctx, ids), direct)
            found = Counter(chunk.came_from for chunk in opened if chunk.exists)
            stage.set({f"{NUM_CHUNKS}.{tier}": num for tier, num in found.items()})
        return opened

    async def prefetch(self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "") -> None:
        self._check_node(node_id)
        ids = list(dict.fromkeys(check_chunk_ids(chunk_ids)))
        self._tiers.prefetch(ids, self._search(ctx, ids), direct=not node_id)

    async def stage(self, ctx: RequestContext, node_id: str = "") -> str:
        self._check_node(node_id)
        return str(self._tiers.disk.staging.directory)

    async def adopt(
        self,
        ctx: RequestContext,
        chunk_id: str,
        node_id: str,
        path: str,
        replace: bool = False,
        write_back: bool = False,
        origin: Origin | None = None,
    ) -> bool:
        self._check_node(node_id)
        staged = self._tiers.disk.staging.given(path)
        try:
            if origin is not None:
                await self._check_origin(ctx, staged, check_chunk_id(chunk_id), origin)
                if write_back:
                    await self._home.count_left(ctx, chunk_id, staged, origin.asked_by)
            return await self._tiers.put(check_chunk_id(chunk_id), staged, replace, write_back)
        finally:
            self._tiers.disk.staging.discard(staged)

    async def put(
        self,
        ctx: RequestContext,
        chunk_id: str,
        size_bytes: int,
        pieces: AsyncIterator[bytes],
        origin: Origin | None = None,
    ) -> bool:
        if size_bytes < 1:
            raise InvalidRequest(f"size_bytes: must be at least 1, got {size_bytes}")
        check_chunk_id(chunk_id)
        if origin is None and await self._tiers.exists(chunk_id):
            return True
        staged = await self._receive(size_bytes, pieces)
        if origin is not None:
            try:
                await self._check_identity(ctx, staged, chunk_id, origin)
            except BaseException:
                self._tiers.disk.staging.discard(staged)
                raise
        return await self._tiers.put(chunk_id, staged)

    async def get(
        self, ctx: RequestContext, chunk_id: str, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        pieces = self._tiers.read(check_chunk_id(chunk_id), offset, length)
        while piece := await asyncio.to_thread(next, pieces, b""):
            yield piece

    async def list_page(self, ctx: RequestContext, start_after: str = "", limit: int = 0) -> ChunkPage:
        return await asyncio.to_thread(self._list, start_after, min(limit or DEFAULT_PAGE, LARGEST_PAGE))

    async def stats(self, ctx: RequestContext) -> StoreStats:
        tiers, counters = await asyncio.to_thread(self._tiers.stats)
        is_home = self._neighbours.is_home
        node = NodeStats(self._neighbours.node_id, is_home, tiers, counters)
        if not is_home:
            return StoreStats((node,))
        objects, detail = None, ""
        try:
            objects = await asyncio.to_thread(self._tiers.object_stats)
        except KvquiltError as error:
            log.warning("what the object store holds is not known: %s", error.detail)
            detail = error.detail
        return StoreStats((node,), objects, await self._upkeep.tenants(ctx), objects_detail=detail)

    async def needed(self, ctx: RequestContext, chunk_ids: Sequence[str], grace_s: float) -> set[str]:
        ids = check_chunk_ids(chunk_ids)
        return await asyncio.to_thread(self._upkeep.needed_here, ids, grace_s)

    async def read_lately(self, ctx: RequestContext) -> bool:
        return self._clock() < self._opened_s + _LATELY_S

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        tiers, _ = await asyncio.to_thread(self._tiers.stats)
        facts = {
            "chunks": str(sum(t.num_chunks for t in tiers if t.tier != "memory")),
            "bytes": str(sum(t.num_bytes for t in tiers if t.tier != "memory")),
            "documents": str(self._documents.num_documents),
        }
        details = []
        room_bytes = await asyncio.to_thread(self._tiers.disk.room_bytes)
        if room_bytes < _LEAST_ROOM_BYTES:
            details.append(
                f"the disk where KV is kept is full ({room_bytes} bytes left), so nothing new is stored; "
                "delete documents or enlarge the volume"
            )
        if failure := self._documents.failure:
            details.append(failure.detail)
        if num_damaged := self._documents.num_damaged:
            details.append(damage_detail(num_damaged))
        if num_foreign := self._documents.num_foreign:
            details.append(foreign_detail(f"{num_foreign} documents were"))
        if self._upkeep.pins_damaged:
            details.append("the list of pins is damaged, so nothing is pinned; pin again what should be")
        # what an outage takes away comes back by itself
        ready = failure is None or failure.retryable
        return ServiceHealth(SERVICE, ready, "; ".join(details), facts)

    def readings(self) -> Iterator[MetricReading]:
        """For metrics. From any thread; blocks for a moment."""
        return node_readings(self._tiers, self._documents, self._neighbours.is_home)

    async def close(self) -> None:
        await self._tiers.close()
        self._flights.close()

    def check_invariants(self) -> None:
        self._tiers.check_invariants()
        self._documents.check_invariants()
        self._upkeep.check_invariants()

    def _found(self, chunk_ids: Sequence[str]) -> dict[str, FileCopy]:
        return {c: copy for c in chunk_ids if (copy := self._tiers.find(c)) is not None}

    def _search(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> PeerSearch:
        return PeerSearch(self._neighbours, ctx, chunk_ids, self._flights)

    async def _receive(self, size_bytes: int, pieces: AsyncIterator[bytes]) -> Path:
        """A staged file with what came.

        Raises:
            InvalidRequest: it is not as long as was announced.
        """
        file, received = await asyncio.to_thread(self._tiers.disk.allocate, size_bytes), 0
        try:
            async for piece in pieces:
                if received + len(piece) > size_bytes:
                    raise InvalidRequest(f"data: more than the announced {size_bytes} bytes")
                await asyncio.to_thread(file.write, received, piece)
                received += len(piece)
            if received < size_bytes:
                raise InvalidRequest(f"data: less than the announced {size_bytes} bytes")
        except BaseException:
            self._tiers.disk.staging.discard(file.path)
            raise
        finally:
            file.close()
        return file.path

    def _list(self, start_after: str, limit: int) -> ChunkPage:
        """One more than asked for says that there are more."""
        objects = self._tiers.objects
        found = self._tiers.disk.copies(start_after, limit + 1, primary_only=objects is not None)
        chunks = {c.chunk_id: _stat(c.chunk_id, c) for c in found}
        if objects is not None and self._neighbours.is_home:
            for copy in islice(all_objects(objects, start_after, limit + 1), limit + 1):
                chunks.setdefault(copy.chunk_id, _stat(copy.chunk_id, copy))
        chosen = sorted(chunks)[:limit]
        return ChunkPage(tuple(chunks[c] for c in chosen), truncated=len(chunks) > limit)

    async def _check_origin(self, ctx: RequestContext, staged: Path, chunk_id: str, origin: Origin) -> None:
        if origin.stored:
            stored = await asyncio.to_thread(self._tiers.header_of, chunk_id)
            await asyncio.to_thread(check_same, staged, chunk_id, stored)
        else:
            await self._check_identity(ctx, staged, chunk_id, origin)

    async def _check_identity(self, ctx: RequestContext, staged: Path, chunk_id: str, origin: Origin) -> None:
        owners = (self._scopes.owner(ctx.tenant), ctx.tenant)  # auxiliary KV is the tenant's own
        await asyncio.to_thread(check_identity, staged, chunk_id, owners, origin)

    def _check_node(self, node_id: str) -> None:
        if node_id not in ("", self._neighbours.node_id):
            raise FailedPrecondition(f"node_id: this is the agent of another node than {node_id!r}")


def _stat(chunk_id: str, copy: FileCopy | None) -> ChunkStat:
    if copy is None:
        return ChunkStat(chunk_id, exists=False)
    return ChunkStat(chunk_id, True, copy.size_bytes, copy.modified_s)
