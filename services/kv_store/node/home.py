"""The documents of the cluster, which the home node keeps, and deletion, which follows from them.

What a caller may not read is as if it were not there, but for one thing: it can be neither replaced nor
removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from services.kv_store.documents.catalog import Document, Removal
from services.kv_store.documents.documents import Documents, absent
from services.kv_store.documents.leftovers import Leftovers
from services.kv_store.documents.naming import not_stored, unreadable_ids
from services.kv_store.documents.quotas import storer_of
from services.kv_store.fetching.nodes import Neighbours
from services.kv_store.node.chunks import NodeTiers
from services.kv_store.tiers.chunk_names import check_chunk_ids
from services.kv_store.upkeep.upkeep import Upkeep
from shared.errors import InvalidRequest, KvquiltError, Unavailable
from shared.kv_stores import NodeAgent
from shared.kv_types import AlikeDocuments, Chain, DeletedChunks, Manifest, ManifestPage
from shared.readers import checked_readers, checked_sections, taken
from shared.request import RequestContext, check_name
from shared.sharing import SharingScopes

log = logging.getLogger(__name__)


class HomeDocuments:
    """``own``: this node's agent, which answers by these methods. On other nodes than home only chunks of
    their own tiers are deleted."""

    def __init__(
        self,
        own: NodeAgent,
        tiers: NodeTiers,
        documents: Documents,
        neighbours: Neighbours,
        upkeep: Upkeep,
        scopes: SharingScopes,
        leftovers: Leftovers,
    ) -> None:
        self._scopes, self._leftovers = scopes, leftovers
        self._own, self._tiers, self._documents = own, tiers, documents
        self._neighbours, self._upkeep = neighbours, upkeep
        self._catalog_lock = asyncio.Lock()  # between deciding that nothing refers to a chunk and deleting it

    async def recover(self, ctx: RequestContext) -> None:
        """Goes on with deletions that were left undone."""
        async with self._catalog_lock:
            if self._neighbours.is_home:
                await asyncio.to_thread(self._documents.sync)
                await asyncio.to_thread(self._documents.renew_copies)
                await self._delete_pending(ctx)
                await asyncio.to_thread(self._documents.hold_reserve)

    async def put_manifest(self, ctx: RequestContext, manifest: Manifest) -> list[str]:
        self._neighbours.check_home()
        _check_manifest(ctx, manifest, self._scopes.of(ctx.tenant))
        async with self._catalog_lock:
            known = await self._changeable(ctx, manifest.collection, manifest.document_id)
            await self._check_stored(ctx, manifest)
            stored_by = storer_of(known, manifest, ctx.principal)
            await self._upkeep.check_quota(ctx, manifest, stored_by)
            return await self._finish(ctx, await asyncio.to_thread(self._documents.put, manifest, stored_by))

    async def check_quota(self, ctx: RequestContext, manifest: Manifest, bytes_per_token: int) -> None:
        self._neighbours.check_home()
        _check_manifest(ctx, manifest, self._scopes.of(ctx.tenant))
        known = await self._changeable(ctx, manifest.collection, manifest.document_id)
        stored_by = storer_of(known, manifest, ctx.principal)
        await self._upkeep.check_quota(ctx, manifest, stored_by, bytes_per_token)

    async def count_left(self, ctx: RequestContext, chunk_id: str, staged: Path, asked_by: str) -> None:
        """On any node: whether KV that a question computed may stay here if no document has it.

        Raises:
            StorageFull: see ``Leftovers``.
        """
        if self._leftovers.limit(ctx.tenant, asked_by) and not await self.readable(ctx, [chunk_id]):
            num_bytes = (await asyncio.to_thread(staged.stat)).st_size
            self._leftovers.add(chunk_id, ctx.tenant, asked_by, num_bytes)

    async def get_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> Manifest:
        self._neighbours.check_home()
        key = (ctx.tenant, collection, document_id)
        known = await asyncio.to_thread(self._documents.find, *key)
        if known is not None and not known.readable_by(ctx.principal):
            raise absent(collection, document_id)
        readable = (await asyncio.to_thread(self._documents.get, *key)).readable_by(ctx.principal)
        if readable is None:  # its readers were changed in between
            raise absent(collection, document_id)
        return readable

    async def readable(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[str]:
        """Asked of any node, answered by home."""
        ids = list(dict.fromkeys(check_chunk_ids(chunk_ids)))
        if self._neighbours.is_home:
            return await asyncio.to_thread(self._documents.readable, ctx.principal, ids)
        nodes = self._neighbours.nodes
        return await (await nodes.store(nodes.home())).readable(ctx, ids)

    async def chain(self, ctx: RequestContext, parent_id: str) -> Chain | None:
        """Asked of any node, answered by home."""
        (parent_id,) = check_chunk_ids([parent_id])
        if self._neighbours.is_home:
            return await asyncio.to_thread(self._documents.chain, ctx.tenant, parent_id)
        nodes = self._neighbours.nodes
        return await (await nodes.store(nodes.home())).chain(ctx, parent_id)

    async def manifest_page(
        self,
        ctx: RequestContext,
        collection: str = "",
        start_after: str = "",
        limit: int = 0,
        summary: bool = False,
        descending: bool = False,
    ) -> ManifestPage:
        self._neighbours.check_home()
        of = (ctx.tenant, collection, start_after, limit, summary, ctx.principal, descending)
        return await asyncio.to_thread(self._documents.page, *of)

    async def count_documents(self, ctx: RequestContext) -> list[AlikeDocuments]:
        self._neighbours.check_home()
        return await asyncio.to_thread(self._documents.counts, ctx.tenant, ctx.principal)

    async def delete_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> list[str]:
        self._neighbours.check_home()
        async with self._catalog_lock:
            known = await asyncio.to_thread(self._documents.find, ctx.tenant, collection, document_id)
            if known is not None and not known.readable_by(ctx.principal):
                raise absent(collection, document_id)
            await self._changeable(ctx, collection, document_id)
            return await self._finish(
                ctx, await asyncio.to_thread(self._documents.remove, ctx.tenant, collection, document_id)
            )

    async def delete(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> DeletedChunks:
        ids = check_chunk_ids(chunk_ids)
        referenced: dict[str, None] = {}
        async with self._catalog_lock:
            if self._neighbours.is_home:
                await asyncio.to_thread(self._documents.sync)
                referenced = dict.fromkeys(c for c in ids if self._documents.references(c))
            deleted, unreachable = await self._delete_everywhere(ctx, [c for c in ids if c not in referenced])
        if unreachable:
            raise Unavailable(
                f"{unreachable} node(s) did not answer; chunks may still be stored there: retry"
            )
        return DeletedChunks(tuple(deleted), tuple(referenced))

    async def _changeable(self, ctx: RequestContext, collection: str, document_id: str) -> Document | None:
        """Returns what is stored under that name; None: nothing.

        Raises:
            DocumentTaken: the caller may not change it.
        """
        known = await asyncio.to_thread(self._documents.find, ctx.tenant, collection, document_id)
        if known is not None and not known.wholly_readable_by(ctx.principal):
            raise taken(document_id)
        return known

    async def _check_stored(self, ctx: RequestContext, manifest: Manifest) -> None:
        """Checks what is stored: what is there, but another tenant's or only in documents that the caller may
        not read, is told like what is not there."""
        ids = list(manifest.kv_ids)
        hidden = await asyncio.to_thread(unreadable_ids, self._documents, manifest, ctx.principal)
        missing = {s.chunk_id for s in await self._own.stat(ctx, ids) if not s.exists} | hidden
        unreachable = 0
        if missing:
            answers, unreachable = await self._neighbours.ask(lambda peer: peer.stat(ctx, sorted(missing)))
            missing -= {s.chunk_id for stats in answers.values() for s in stats if s.exists} - hidden
        if missing and unreachable:
            raise Unavailable(
                f"{len(missing)} chunks of the document may lie on nodes that do not answer; retry"
            )
        if missing:
            raise not_stored(len(missing), manifest)

    async def _finish(self, ctx: RequestContext, removal: Removal | None) -> list[str]:
        """Chunks that went with ``removal``, for all that the caller is told: of documents that it may not
        read nobody learns by what they keep."""
        await self._delete_pending(ctx)
        if removal is None:
            return []
        kept = set(await asyncio.to_thread(self._documents.readable, ctx.principal, removal.chunk_ids))
        return [c for c in removal.chunk_ids if c not in kept]

    async def _delete_pending(self, ctx: RequestContext) -> None:
        """Deletes what it can; what a node that does not answer still has stays pending."""
        for removal in self._documents.pending():
            _, unreachable = await self._delete_everywhere(ctx, self._unreferenced(removal))
            if not unreachable:
                await asyncio.to_thread(self._documents.finish, removal)

    def _unreferenced(self, removal: Removal) -> list[str]:
        return [c for c in removal.chunk_ids if not self._documents.references(c)]

    async def _delete_everywhere(
        self, ctx: RequestContext, chunk_ids: Sequence[str]
    ) -> tuple[list[str], int]:
        """Returns which of them were stored, and how many nodes (or object stores) did not answer. The object
        store comes last: nothing is brought there by a node that has let go of a chunk."""
        if not chunk_ids:
            return [], 0
        deleted = await _those(chunk_ids, self._tiers.delete)
        unreachable = 0
        if self._neighbours.is_home:
            answers, unreachable = await self._neighbours.ask(lambda peer: peer.delete(ctx, chunk_ids))
            deleted.update(c for answer in answers.values() for c in answer.deleted)
            try:
                deleted |= await _those(chunk_ids, self._tiers.delete_object)
            except KvquiltError as error:
                log.warning("chunks stay in the object store for now: %s", error.detail)
                unreachable += 1
        return [c for c in dict.fromkeys(chunk_ids) if c in deleted], unreachable


async def _those(chunk_ids: Sequence[str], call: Callable[[str], Awaitable[bool]]) -> set[str]:
    ids = list(dict.fromkeys(chunk_ids))
    return {c for c, yes in zip(ids, await asyncio.gather(*map(call, ids)), strict=True) if yes}


def _check_manifest(ctx: RequestContext, manifest: Manifest, scope: str) -> None:
    if manifest.tenant != ctx.tenant:
        raise InvalidRequest(
            f"manifest.tenant: {manifest.tenant!r}, but the request is of tenant {ctx.tenant!r}"
        )
    if manifest.kv_scope != scope:
        raise InvalidRequest(
            f"manifest.kv_scope: {manifest.kv_scope[:80]!r}, but the request's tenant is in "
            f"{f'the sharing scope {scope!r}' if scope else 'no sharing scope'}"
        )
    check_name("manifest.collection", manifest.collection)
    checked_sections(
        "manifest.sections", checked_readers("manifest.readers", manifest.readers), manifest.sections
    )
    check_chunk_ids(manifest.kv_ids)
    parents = {chunk.parent_id for chunk in manifest.chunks} - {"", *(c.chunk_id for c in manifest.chunks)}
    if parents and parents - manifest.derived_ids:
        raise InvalidRequest(
            "manifest.chunks: a parent_id is neither a chunk's nor a header's of the document"
        )
