"""One node's part of the store: its tiers and, on the home node, the documents of all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import TypeVar

from services.kv_store.documents.documents import Documents, Removal
from services.kv_store.documents.quotas import Quotas
from services.kv_store.fetching.flight import FlightReader
from services.kv_store.fetching.nodes import Nodes, ask
from services.kv_store.fetching.sources import PeerSearch
from services.kv_store.node.chunks import NodeTiers
from services.kv_store.tiers.chunk_names import DEFAULT_PAGE, LARGEST_PAGE, check_chunk_id, chunk_of
from services.kv_store.tiers.files import Copy
from services.kv_store.tiers.object_chunks import all_objects
from services.kv_store.upkeep.upkeep import Upkeep
from shared.clients.health import ServiceHealth
from shared.errors import FailedPrecondition, InvalidRequest, KvquiltError, Unavailable
from shared.kv_types import (
    ChunkPage,
    ChunkStat,
    CollectedGarbage,
    DeletedChunks,
    KvStore,
    Manifest,
    ManifestPage,
    NodeStats,
    OpenedChunk,
    PinnedChunks,
    PinnedDocuments,
    StoreStats,
    VerifyProgress,
)
from shared.request import RequestContext, check_name

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

SERVICE = "kv_store"
STALE_STAGING_S = 3600.0


class Agent:
    """A ``shared.kv_types.KvStore`` of one node. What it says about chunks is about this node's; the home
    node answers for the object store, too, and its ``delete`` reaches all nodes."""

    def __init__(
        self,
        node_id: str,
        tiers: NodeTiers,
        documents: Documents,
        nodes: Nodes,
        stale_staging_s: float = STALE_STAGING_S,
        quotas: Quotas | None = None,
        location: str = "",
    ) -> None:
        """``location``: of this node's ``FlightServer``; empty: other nodes stream by ``get``."""
        self._node_id, self._tiers, self._documents, self._nodes = node_id, tiers, documents, nodes
        self._stale_staging_s, self._location = stale_staging_s, location
        self._flights = FlightReader()
        self._catalog_lock = asyncio.Lock()  # between deciding that nothing refers to a chunk and deleting it
        self._upkeep = Upkeep(node_id, self, tiers, documents, nodes, quotas, self._search)

    async def recover(self, ctx: RequestContext) -> None:
        """Goes on with what was left undone: the agent died in between, or a node or the object store did not
        answer."""
        self._tiers.upload_pending()
        await asyncio.to_thread(self._tiers.clean, self._stale_staging_s)
        async with self._catalog_lock:
            if self._is_home:
                await asyncio.to_thread(self._documents.sync)
                await self._delete_pending(ctx)

    async def stat(
        self, ctx: RequestContext, chunk_ids: Sequence[str], held: bool = False
    ) -> list[ChunkStat]:
        ids = [check_chunk_id(c) for c in chunk_ids]
        if held or self._tiers.objects is None:
            copies = {c: copy for c in ids if (copy := self._tiers.find(c)) is not None}
        else:
            copies = await self._tiers.stored(ids, ask_objects=self._is_home)
        return [_stat(c, copies.get(c), self._location if held else "") for c in ids]

    async def open(
        self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = ""
    ) -> list[OpenedChunk]:
        self._check_node(node_id)
        ids = [check_chunk_id(c) for c in chunk_ids]
        return await self._tiers.open(ids, self._search(ctx, ids))

    async def prefetch(self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "") -> None:
        self._check_node(node_id)
        ids = list(dict.fromkeys(check_chunk_id(c) for c in chunk_ids))
        self._tiers.prefetch(ids, self._search(ctx, ids))

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
        behind: bool = False,
    ) -> bool:
        self._check_node(node_id)
        staged = self._tiers.disk.staging.given(path)
        return await self._tiers.put(check_chunk_id(chunk_id), staged, replace, behind)

    async def put(
        self,
        ctx: RequestContext,
        chunk_id: str,
        size_bytes: int,
        pieces: AsyncIterator[bytes],
        replace: bool = False,
    ) -> bool:
        if size_bytes < 1:
            raise InvalidRequest(f"size_bytes: must be at least 1, got {size_bytes}")
        if not replace and await self._tiers.exists(check_chunk_id(chunk_id)):
            return True
        return await self._tiers.put(chunk_id, await self._receive(size_bytes, pieces), replace)

    async def get(
        self, ctx: RequestContext, chunk_id: str, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        pieces = self._tiers.read(check_chunk_id(chunk_id), offset, length)
        while piece := await asyncio.to_thread(next, pieces, b""):
            yield piece

    async def delete(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> DeletedChunks:
        async with self._catalog_lock:
            known = [check_chunk_id(c) for c in chunk_ids]
            if self._is_home:
                await asyncio.to_thread(self._documents.sync)
            referenced = tuple(c for c in known if self._is_home and self._documents.references(c))
            deleted, unreachable = await self._delete_everywhere(
                ctx, [c for c in chunk_ids if c not in set(referenced)]
            )
        if unreachable:
            raise Unavailable(
                f"{unreachable} node(s) did not answer; chunks may still be stored there: retry"
            )
        return DeletedChunks(tuple(deleted), referenced)

    async def list_page(self, ctx: RequestContext, start_after: str = "", limit: int = 0) -> ChunkPage:
        return await asyncio.to_thread(self._list, start_after, min(limit or DEFAULT_PAGE, LARGEST_PAGE))

    async def stats(self, ctx: RequestContext) -> StoreStats:
        tiers, counters = await asyncio.to_thread(self._tiers.stats)
        node = NodeStats(self._node_id, self._is_home, tiers, counters)
        if not self._is_home:
            return StoreStats((node,))
        objects, num_unreachable = None, 0
        try:
            objects = await asyncio.to_thread(self._tiers.object_stats)
        except KvquiltError as error:
            log.warning("what the object store holds is not known: %s", error.detail)
            num_unreachable = 1
        return StoreStats((node,), objects, await self._upkeep.tenants(ctx), num_unreachable)

    async def verify(self, ctx: RequestContext, repair: bool = False) -> AsyncGenerator[VerifyProgress, None]:
        async with aclosing(self._upkeep.verify(ctx, repair)) as progress:
            async for now in progress:
                yield now

    async def collect_garbage(
        self, ctx: RequestContext, grace_s: float, dry_run: bool = False, chunk_ids: Sequence[str] = ()
    ) -> CollectedGarbage:
        return await self._upkeep.collect_garbage(
            ctx, grace_s, dry_run, [check_chunk_id(c) for c in chunk_ids]
        )

    async def pin(
        self, ctx: RequestContext, collection: str, document_id: str = "", unpin: bool = False
    ) -> int:
        return await self._upkeep.pin(ctx, collection, document_id, unpin)

    async def list_pins(self, ctx: RequestContext) -> list[PinnedDocuments]:
        return await self._upkeep.list_pins(ctx)

    async def list_pinned_chunks(self, ctx: RequestContext, known_version: str = "") -> PinnedChunks:
        return await self._upkeep.pinned_chunks(known_version)

    async def follow_pins(self, ctx: RequestContext) -> None:
        """Makes this node keep what is pinned by now."""
        await self._upkeep.follow_pins(ctx)

    async def put_manifest(self, ctx: RequestContext, manifest: Manifest) -> list[str]:
        self._check_home()
        _check_manifest(ctx, manifest)
        async with self._catalog_lock:
            await self._check_stored(ctx, manifest)
            await self._upkeep.check_quota(ctx, manifest)
            return await self._finish(ctx, await asyncio.to_thread(self._documents.put, manifest))

    async def get_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> Manifest:
        self._check_home()
        return await asyncio.to_thread(self._documents.get, ctx.tenant, collection, document_id)

    async def manifest_page(
        self,
        ctx: RequestContext,
        collection: str = "",
        start_after: str = "",
        limit: int = 0,
        summary: bool = False,
    ) -> ManifestPage:
        self._check_home()
        return await asyncio.to_thread(
            self._documents.page, ctx.tenant, collection, start_after, limit, summary
        )

    async def delete_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> list[str]:
        self._check_home()
        async with self._catalog_lock:
            return await self._finish(
                ctx, await asyncio.to_thread(self._documents.remove, ctx.tenant, collection, document_id)
            )

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        tiers, _ = await asyncio.to_thread(self._tiers.stats)
        facts = {
            "chunks": str(sum(t.num_chunks for t in tiers if t.tier != "memory")),
            "bytes": str(sum(t.num_bytes for t in tiers if t.tier != "memory")),
            "documents": str(self._documents.num_documents),
        }
        failure = self._documents.failure
        if failure is None:
            return ServiceHealth(SERVICE, ready=True, facts=facts)
        # what an outage takes away comes back by itself
        return ServiceHealth(SERVICE, failure.retryable, failure.detail, facts)

    async def close(self) -> None:
        await self._tiers.close()
        self._flights.close()

    def check_invariants(self) -> None:
        self._tiers.check_invariants()
        self._documents.check_invariants()
        self._upkeep.check_invariants()

    def _search(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> PeerSearch:
        return PeerSearch(self._nodes, self._node_id, ctx, chunk_ids, self._flights)

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
        found = self._tiers.disk.copies(start_after, limit + 1, kept_only=objects is not None)
        chunks = {c.chunk_id: _stat(c.chunk_id, c) for c in found}
        if objects is not None and self._is_home:
            for blob in islice(all_objects(objects, start_after, limit + 1), limit + 1):
                if (chunk_id := chunk_of(blob.name)) is not None:
                    chunks.setdefault(chunk_id, ChunkStat(chunk_id, True, blob.size_bytes, blob.modified_s))
        chosen = sorted(chunks)[:limit]
        return ChunkPage(tuple(chunks[c] for c in chosen), truncated=len(chunks) > limit)

    # ---- documents (home node)

    async def _check_stored(self, ctx: RequestContext, manifest: Manifest) -> None:
        ids = list(manifest.kv_ids)
        missing = {s.chunk_id for s in await self.stat(ctx, ids) if not s.exists}
        unreachable = 0
        if missing:
            answers, unreachable = await self._ask_others(lambda peer: peer.stat(ctx, sorted(missing)))
            missing -= {s.chunk_id for stats in answers.values() for s in stats if s.exists}
        if missing and unreachable:
            raise Unavailable(
                f"{len(missing)} chunks of the document may lie on nodes that do not answer; retry"
            )
        if missing:
            raise FailedPrecondition(
                f"{len(missing)} of {len(ids)} chunks of the document are not stored; prefill them again"
            )

    async def _finish(self, ctx: RequestContext, removal: Removal | None) -> list[str]:
        """Chunks that went with ``removal``."""
        unreferenced = [] if removal is None else self._unreferenced(removal)
        await self._delete_pending(ctx)
        return unreferenced

    async def _delete_pending(self, ctx: RequestContext) -> None:
        """What a node that does not answer still has stays pending."""
        for removal in self._documents.pending():
            _, unreachable = await self._delete_everywhere(ctx, self._unreferenced(removal))
            if not unreachable:
                await asyncio.to_thread(self._documents.finish, removal)

    def _unreferenced(self, removal: Removal) -> list[str]:
        return [c for c in removal.chunk_ids if not self._documents.references(c)]

    async def _delete_everywhere(
        self, ctx: RequestContext, chunk_ids: Sequence[str]
    ) -> tuple[list[str], int]:
        """Which of them were stored, and how many nodes (or object stores) did not answer. The object store
        comes last: nothing is brought there by a node that has let go of a chunk."""
        if not chunk_ids:
            return [], 0
        deleted = await _those(chunk_ids, self._tiers.delete)
        unreachable = 0
        if self._is_home:
            answers, unreachable = await self._ask_others(lambda peer: peer.delete(ctx, chunk_ids))
            deleted.update(c for answer in answers.values() for c in answer.deleted)
            try:
                deleted |= await _those(chunk_ids, self._tiers.delete_object)
            except KvquiltError as error:
                log.warning("chunks stay in the object store for now: %s", error.detail)
                unreachable += 1
        return [c for c in dict.fromkeys(chunk_ids) if c in deleted], unreachable

    async def _ask_others(
        self, call: Callable[[KvStore], Awaitable[ResultT]]
    ) -> tuple[dict[str, ResultT], int]:
        return await ask(self._nodes, [n for n in self._nodes.ids() if n != self._node_id], call)

    def _check_node(self, node_id: str) -> None:
        if node_id not in ("", self._node_id):
            raise FailedPrecondition(f"node_id: this is the agent of another node than {node_id!r}")

    @property
    def _is_home(self) -> bool:
        return self._nodes.home() == self._node_id

    def _check_home(self) -> None:
        if not self._is_home:
            raise FailedPrecondition("documents are kept by the agent of the home node only")


async def _those(chunk_ids: Sequence[str], call: Callable[[str], Awaitable[bool]]) -> set[str]:
    ids = list(dict.fromkeys(chunk_ids))
    return {c for c, yes in zip(ids, await asyncio.gather(*map(call, ids)), strict=True) if yes}


def _stat(chunk_id: str, copy: Copy | None, location: str = "") -> ChunkStat:
    if copy is None:
        return ChunkStat(chunk_id, exists=False)
    return ChunkStat(chunk_id, True, copy.size_bytes, copy.modified_s, location)


def _check_manifest(ctx: RequestContext, manifest: Manifest) -> None:
    if manifest.tenant != ctx.tenant:
        raise InvalidRequest(
            f"manifest.tenant: {manifest.tenant!r}, but the request is of tenant {ctx.tenant!r}"
        )
    check_name("manifest.collection", manifest.collection)
    for chunk_id in manifest.kv_ids:
        check_chunk_id(chunk_id)
