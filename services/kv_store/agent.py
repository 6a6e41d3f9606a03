"""One node's part of the store: its files, copies from other nodes and, on the home node, the documents of all."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from services.kv_store.chunk_files import ChunkFiles, check_chunk_id
from services.kv_store.documents import Documents, Removal
from services.kv_store.nodes import Nodes, ask
from shared.clients.health import ServiceHealth
from shared.errors import FailedPrecondition, InvalidRequest, KvquiltError, Unavailable
from shared.kv_types import ChunkPage, ChunkStat, DeletedChunks, KvStore, Manifest, ManifestPage, OpenedChunk
from shared.request import RequestContext, check_name

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

SERVICE = "kv_store"
_MOST_COPIES_AT_ONCE = 4
_PEER_TIMEOUT_S = 5.0


class Agent:
    """A ``shared.kv_types.KvStore`` of one node: what it says about chunks is about this node's, but ``open`` copies from others
    and the home node's ``delete`` reaches them all."""

    def __init__(self, node_id: str, files: ChunkFiles, documents: Documents, nodes: Nodes) -> None:
        self._node_id, self._files, self._documents, self._nodes = node_id, files, documents, nodes
        self._catalog_lock = asyncio.Lock()  # between deciding that nothing refers to a chunk and deleting it
        self._copies: dict[str, asyncio.Task[bool]] = {}
        self._copy_slots = asyncio.Semaphore(_MOST_COPIES_AT_ONCE)

    async def recover(self, ctx: RequestContext) -> None:
        """Deletes what was left to delete: the agent died in between, or a node did not answer."""
        async with self._catalog_lock:
            await self._delete_pending(ctx)

    async def stat(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[ChunkStat]:
        return await asyncio.to_thread(self._files.stat, chunk_ids)

    async def open(self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "") -> list[OpenedChunk]:
        self._check_node(node_id)
        opened = await asyncio.to_thread(self._files.open, chunk_ids)
        missing = list(dict.fromkeys(o.chunk_id for o in opened if not o.exists))
        holders = await self._holders(ctx, missing) if missing else {}
        copied = await asyncio.gather(*(self._copy_once(ctx, chunk_id, nodes) for chunk_id, nodes in holders.items()))
        return await asyncio.to_thread(self._files.open, chunk_ids) if any(copied) else opened

    async def stage(self, ctx: RequestContext, node_id: str = "") -> str:
        self._check_node(node_id)
        return str(self._files.staging)

    async def adopt(self, ctx: RequestContext, chunk_id: str, node_id: str, path: str, replace: bool = False) -> bool:
        self._check_node(node_id)
        return await asyncio.to_thread(self._files.adopt, chunk_id, path, replace)

    async def put(self, ctx: RequestContext, chunk_id: str, size_bytes: int, pieces: AsyncIterator[bytes]) -> bool:
        (stored,) = await self.stat(ctx, [chunk_id])
        return stored.exists or await self._receive(chunk_id, size_bytes, pieces)

    async def get(
        self, ctx: RequestContext, chunk_id: str, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        pieces = self._files.read(chunk_id, offset, length)
        while piece := await asyncio.to_thread(next, pieces, b""):
            yield piece

    async def delete(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> DeletedChunks:
        async with self._catalog_lock:
            referenced = tuple(c for c in chunk_ids if self._documents.references(check_chunk_id(c)))
            deleted, unreachable = await self._delete_everywhere(ctx, [c for c in chunk_ids if c not in set(referenced)])
        if unreachable:
            raise Unavailable(f"{unreachable} node(s) did not answer; chunks may still be stored there: retry")
        return DeletedChunks(tuple(deleted), referenced)

    async def list_page(self, ctx: RequestContext, start_after: str = "", limit: int = 0) -> ChunkPage:
        return await asyncio.to_thread(self._files.page, start_after, limit)

    async def put_manifest(self, ctx: RequestContext, manifest: Manifest) -> list[str]:
        self._check_home()
        _check_manifest(ctx, manifest)
        async with self._catalog_lock:
            await self._check_stored(ctx, manifest)
            return await self._finish(ctx, await asyncio.to_thread(self._documents.put, manifest))

    async def get_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> Manifest:
        self._check_home()
        return await asyncio.to_thread(self._documents.get, ctx.tenant, collection, document_id)

    async def manifest_page(
        self, ctx: RequestContext, collection: str = "", start_after: str = "", limit: int = 0, summary: bool = False
    ) -> ManifestPage:
        self._check_home()
        return await asyncio.to_thread(self._documents.page, ctx.tenant, collection, start_after, limit, summary)

    async def delete_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> list[str]:
        self._check_home()
        async with self._catalog_lock:
            return await self._finish(ctx, await asyncio.to_thread(self._documents.remove, ctx.tenant, collection, document_id))

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        facts = {
            "chunks": str(self._files.num_chunks),
            "bytes": str(self._files.num_bytes),
            "documents": str(self._documents.num_documents),
        }
        return ServiceHealth(SERVICE, ready=True, facts=facts)

    def check_invariants(self) -> None:
        self._files.check_invariants()
        self._documents.check_invariants()

    # ---- copies from other nodes

    async def _holders(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> dict[str, list[tuple[str, int]]]:
        """(node, size) of every copy that other nodes have; nodes that do not answer soon have none."""
        soon = replace(ctx, deadline_s=min(ctx.deadline_s, time.monotonic() + _PEER_TIMEOUT_S))
        holders: dict[str, list[tuple[str, int]]] = {}
        answers, _ = await self._ask_others(lambda peer: peer.stat(soon, chunk_ids))
        for node_id, stats in answers.items():
            for stat in stats:
                if stat.exists:
                    holders.setdefault(stat.chunk_id, []).append((node_id, stat.size_bytes))
        return holders

    async def _copy_once(self, ctx: RequestContext, chunk_id: str, holders: Sequence[tuple[str, int]]) -> bool:
        """However many ask for a chunk, one copy is made. One asker's going away does not end it for the others."""
        task = self._copies.get(chunk_id)
        if task is None:
            task = self._copies[chunk_id] = asyncio.create_task(self._copy(ctx, chunk_id, holders))
            task.add_done_callback(lambda _: self._copies.pop(chunk_id))
        return await asyncio.shield(task)

    async def _copy(self, ctx: RequestContext, chunk_id: str, holders: Sequence[tuple[str, int]]) -> bool:
        """Whether the chunk is here now. A chunk that cannot be had is absent, for its user can compute it."""
        async with self._copy_slots:
            for node_id, size_bytes in holders:
                try:
                    peer = await self._nodes.store(node_id)
                    async with aclosing(peer.get(ctx, chunk_id)) as pieces:
                        await self._receive(chunk_id, size_bytes, pieces)
                    return True
                except KvquiltError as error:
                    log.warning("cannot copy chunk %s from node %s: %s", chunk_id, node_id, error.detail)
                    if isinstance(error, Unavailable):
                        self._nodes.suspect(node_id)
        return False

    async def _receive(self, chunk_id: str, size_bytes: int, pieces: AsyncIterator[bytes]) -> bool:
        staged, received = self._files.new_staged(), 0
        try:
            async for piece in pieces:
                received += len(piece)
                if received > size_bytes:
                    break
                await asyncio.to_thread(self._files.append, staged, piece)
            if received != size_bytes:
                raise InvalidRequest(f"data: {'more' if received > size_bytes else 'less'} than the announced {size_bytes} bytes")
            return await asyncio.to_thread(self._files.adopt, chunk_id, staged)
        finally:
            self._files.discard(staged)

    # ---- documents (home node)

    async def _check_stored(self, ctx: RequestContext, manifest: Manifest) -> None:
        ids = list(dict.fromkeys(c.chunk_id for c in manifest.chunks))
        missing = {s.chunk_id for s in await self.stat(ctx, ids) if not s.exists}
        unreachable = 0
        if missing:
            answers, unreachable = await self._ask_others(lambda peer: peer.stat(ctx, sorted(missing)))
            missing -= {s.chunk_id for stats in answers.values() for s in stats if s.exists}
        if missing and unreachable:
            raise Unavailable(f"{len(missing)} chunks of the document may lie on nodes that do not answer; retry")
        if missing:
            raise FailedPrecondition(f"{len(missing)} of {len(ids)} chunks of the document are not stored; prefill them again")

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

    async def _delete_everywhere(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> tuple[list[str], int]:
        """Which of them were stored, and how many nodes did not answer."""
        if not chunk_ids:
            return [], 0
        deleted = set(await asyncio.to_thread(self._files.delete, chunk_ids))
        unreachable = 0
        if self._nodes.home() == self._node_id:
            answers, unreachable = await self._ask_others(lambda peer: peer.delete(ctx, chunk_ids))
            deleted.update(c for answer in answers.values() for c in answer.deleted)
        return [c for c in dict.fromkeys(chunk_ids) if c in deleted], unreachable

    async def _ask_others(self, call: Callable[[KvStore], Awaitable[ResultT]]) -> tuple[dict[str, ResultT], int]:
        return await ask(self._nodes, [n for n in self._nodes.ids() if n != self._node_id], call)

    def _check_node(self, node_id: str) -> None:
        if node_id not in ("", self._node_id):
            raise FailedPrecondition(f"node_id: this is the agent of another node than {node_id!r}")

    def _check_home(self) -> None:
        if self._nodes.home() != self._node_id:
            raise FailedPrecondition("documents are kept by the agent of the home node only")


def _check_manifest(ctx: RequestContext, manifest: Manifest) -> None:
    if manifest.tenant != ctx.tenant:
        raise InvalidRequest(f"manifest.tenant: {manifest.tenant!r}, but the request is of tenant {ctx.tenant!r}")
    check_name("manifest.collection", manifest.collection)
    for chunk in manifest.chunks:
        check_chunk_id(chunk.chunk_id)
