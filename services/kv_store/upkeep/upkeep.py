"""Keeps the store whole and no larger than it must be: scrubbing, garbage collection, pins and quotas, as one
node does them.

The home node decides and asks the others, which answer about themselves; the rules are in ``scrub``,
``garbage``, ``pins`` and ``quotas``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from functools import partial

from services.kv_store.documents.catalog import Document
from services.kv_store.documents.documents import Documents
from services.kv_store.documents.items import Items
from services.kv_store.documents.pins import Pin, Pins, check_room, no_such
from services.kv_store.documents.quotas import Quotas, TenantUsage, after_replacing
from services.kv_store.fetching.nodes import Neighbours, merged_page
from services.kv_store.fetching.sources import PeerSearch
from services.kv_store.node.chunks import NodeTiers
from services.kv_store.node.copies import NodeCopies
from services.kv_store.upkeep.garbage import collect, keeper_now_s, young
from services.kv_store.upkeep.scrub import Scrub, scrub_cluster
from shared.errors import KvquiltError, Unavailable
from shared.kv_reports import CollectedGarbage, DamagedRecord, TenantStats, VerifyProgress
from shared.kv_stores import NodeAgent
from shared.kv_types import ChunkPage, DeletedChunks, Manifest
from shared.pinned import PinnedChunks, PinnedDocuments
from shared.readers import reads_everything
from shared.request import RequestContext, check_name

log = logging.getLogger(__name__)
Search = Callable[[RequestContext, Sequence[str]], PeerSearch]

_IDS_PER_CALL = 1000


class Upkeep:
    """``own``: this node's store, as the others see it, which answers by these methods."""

    def __init__(
        self,
        own: NodeAgent,
        tiers: NodeTiers,
        documents: Documents,
        neighbours: Neighbours,
        quotas: Quotas,
        search: Search,
        items: Items,
    ) -> None:
        self._items = items
        self._own, self._tiers, self._documents = own, tiers, documents
        self._neighbours, self._quotas, self._search = neighbours, quotas, search
        self._pins = Pins(tiers.truth, documents.documents, tiers.keys)
        self._usage = TenantUsage()
        self._pinned_version = ""

    # ---- scrubbing

    async def verify(
        self, ctx: RequestContext, repair: bool = False, seal: bool = False
    ) -> AsyncGenerator[VerifyProgress, None]:
        """Of this node; the home node asks the others too and looks after the object store."""
        is_home = self._neighbours.is_home
        copies = NodeCopies(
            self._tiers,
            lambda chunk_id: self._search(ctx, [chunk_id]),
            with_objects=is_home and self._tiers.objects is not None,
        )
        scrub = Scrub(self._neighbours.node_id, copies, repair, seal)
        updates = scrub.run(ctx)
        if is_home:
            await asyncio.to_thread(self._documents.sync)
            records = await asyncio.to_thread(self._verify_records, repair)
            num_unsealed, num_sealed = await asyncio.to_thread(self._documents.seal, seal)
            if records or num_unsealed or num_sealed:
                yield VerifyProgress(
                    0,
                    0,
                    (),
                    (),
                    records,
                    num_unsealed_documents=num_unsealed,
                    num_sealed_documents=num_sealed,
                )
            peers = {n: partial(self._verify_peer, ctx, n, repair, seal) for n in self._neighbours.ids}
            updates = scrub_cluster(ctx, scrub, peers, self._referenced, partial(self._stored, ctx))
        async with aclosing(updates) as progress:
            async for now in progress:
                yield now

    async def _verify_peer(
        self, ctx: RequestContext, node_id: str, repair: bool, seal: bool
    ) -> AsyncGenerator[VerifyProgress, None]:
        peer = await self._neighbours.nodes.store(node_id)
        async for progress in peer.verify(ctx, repair, seal):
            yield progress

    def _verify_records(self, repair: bool) -> tuple[DamagedRecord, ...]:
        return (*self._documents.verify(repair), *self._pins.verify(repair), *self._items.verify())

    def _referenced(self) -> set[str]:
        return {c for d in self._documents.documents() for c in d.chunk_ids}

    async def _stored(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> dict[str, Collection[str]]:
        """By node: where the truth of chunks is."""
        stats = await self._neighbours.ask_all(lambda peer: peer.stat(ctx, chunk_ids))
        stats[self._neighbours.node_id] = await self._own.stat(ctx, chunk_ids)
        return {node_id: [s.chunk_id for s in of if s.exists] for node_id, of in stats.items()}

    # ---- garbage

    async def collect_garbage(
        self, ctx: RequestContext, grace_s: float, dry_run: bool = False
    ) -> CollectedGarbage:
        self._neighbours.check_home()
        await asyncio.to_thread(self._documents.sync)
        self._documents.check_known()
        return await collect(ctx, self, self._documents.references, grace_s, dry_run)

    async def now_s(self) -> float:
        objects = self._tiers.objects
        return time.time() if objects is None else await asyncio.to_thread(keeper_now_s, objects)

    async def list_page(self, ctx: RequestContext, start_after: str = "") -> ChunkPage:
        """Of all nodes and the object store."""
        answers = await self._neighbours.ask_all(lambda peer: peer.list_page(ctx, start_after, _IDS_PER_CALL))
        own = await self._own.list_page(ctx, start_after, _IDS_PER_CALL)
        return merged_page([own, *answers.values()], _IDS_PER_CALL)

    async def delete(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> DeletedChunks:
        return await self._own.delete(ctx, chunk_ids)

    async def needed(self, ctx: RequestContext, chunk_ids: Sequence[str], grace_s: float) -> Collection[str]:
        if not chunk_ids:
            return ()
        answers, unreachable = await self._neighbours.ask(lambda peer: peer.needed(ctx, chunk_ids, grace_s))
        if unreachable:
            raise Unavailable(f"{unreachable} node(s) of the store do not answer, and may be reading; retry")
        return (await asyncio.to_thread(self.needed_here, chunk_ids, grace_s)).union(*answers.values())

    def needed_here(self, chunk_ids: Sequence[str], grace_s: float) -> set[str]:
        """Finds those that must stay because of this node. Blocks."""
        found = [copy for c in chunk_ids for tier in self._tiers.own if (copy := tier.find(c)) is not None]
        ages = ((copy.chunk_id, copy.modified_s) for copy in found)
        return young(ages, time.time(), grace_s) | {c for c in chunk_ids if self._tiers.leased(c)}

    # ---- pins

    @property
    def pins_damaged(self) -> bool:
        return self._pins.damaged

    async def pin(
        self, ctx: RequestContext, collection: str, document_id: str = "", unpin: bool = False
    ) -> int:
        """Bytes that are pinned now, over all tenants."""
        self._neighbours.check_home()
        pin = Pin(ctx.tenant, check_name("collection", collection), document_id)
        if not reads_everything(ctx.principal) and not self._readable(ctx, pin):
            raise no_such(pin)
        pins = await asyncio.to_thread(self._pins.with_change, pin, unpin)
        num_bytes = await self._bytes_of(ctx, self._pins.documents_of(pins))
        if not unpin:
            check_room(num_bytes, await self._disk_capacities(ctx))
        await asyncio.to_thread(self._pins.change, pin, unpin)
        await self.follow_pins(ctx)
        return num_bytes

    async def list_pins(self, ctx: RequestContext) -> list[PinnedDocuments]:
        self._neighbours.check_home()
        pins = await asyncio.to_thread(self._pins.of, ctx.tenant)
        readable = {pin: self._readable(ctx, pin) for pin in pins}
        return [
            PinnedDocuments(p.collection, p.document_id, await self._bytes_of(ctx, documents))
            for p, documents in readable.items()
            if documents or reads_everything(ctx.principal)
        ]

    async def list_pinned_chunks(self, ctx: RequestContext, known_version: str = "") -> PinnedChunks:
        """Without ids where ``known_version`` is what holds."""
        self._neighbours.check_home()
        pinned = await asyncio.to_thread(self._pins.chunks)
        return PinnedChunks(pinned.version) if pinned.version == known_version else pinned

    async def follow_pins(self, ctx: RequestContext) -> None:
        """Makes this node keep what is pinned by now. Raises ``Unavailable``."""
        home: NodeAgent = self._own
        if self._neighbours.is_home:
            await asyncio.to_thread(self._pins.load)
        else:
            nodes = self._neighbours.nodes
            home = await nodes.store(nodes.home())
        pinned = await home.list_pinned_chunks(ctx, self._pinned_version)
        if pinned.version != self._pinned_version:
            self._tiers.pin(pinned.chunk_ids)
            self._pinned_version = pinned.version

    async def _disk_capacities(self, ctx: RequestContext) -> dict[str, int]:
        answers, _ = await self._neighbours.ask(lambda peer: peer.stats(ctx))
        tiers = {node.node_id: node.tiers for answer in answers.values() for node in answer.nodes}
        tiers[self._neighbours.node_id] = (await asyncio.to_thread(self._tiers.stats))[0]
        return {
            node_id: next((t.capacity_bytes for t in of if t.tier == "disk"), 0)
            for node_id, of in tiers.items()
        }

    # ---- quotas

    async def check_quota(
        self, ctx: RequestContext, manifest: Manifest, stored_by: str, bytes_per_token: int = 0
    ) -> None:
        """``bytes_per_token``: what chunks that are not stored yet will take at least.

        Raises:
            StorageFull: with this document the tenant, or the principal ``stored_by``, would have more than
                it may.
        """
        quotas, tenant = self._quotas, manifest.tenant
        if quotas.tenants.of(tenant):
            quotas.tenants.check(tenant, *await self._growth(ctx, manifest, None, bytes_per_token))
        if quotas.of_principal(tenant, stored_by):
            growth = await self._growth(ctx, manifest, stored_by, bytes_per_token)
            quotas.check_principal(tenant, stored_by, *growth)

    async def _growth(
        self, ctx: RequestContext, manifest: Manifest, stored_by: str | None, bytes_per_token: int
    ) -> tuple[int, int]:
        """Bytes of the documents (``after_replacing``) before and after, with those of items."""
        before, after = after_replacing(self._documents.documents(), manifest, stored_by)
        await self._learn(ctx, {*self._usage.unknown(before), *manifest.kv_ids})
        num_tokens = {chunk.chunk_id: len(chunk.token_ids) for chunk in manifest.chunks}
        to_come = sum(num_tokens.get(c, 0) for c in self._usage.unknown(after)) * bytes_per_token
        kept = await asyncio.to_thread(self._items.num_bytes, manifest.tenant, stored_by)
        return self._usage.bytes_of(before) + kept, self._usage.bytes_of(after) + to_come + kept

    async def check_item(self, ctx: RequestContext, size_bytes: int, name: str) -> None:
        """Whether an item of this size may be kept for the caller's tenant, as the principal ``name``'s.

        Raises:
            StorageFull: either would have more than it may.
        """
        quotas, tenant = self._quotas, ctx.tenant
        if quotas.tenants.of(tenant):
            before = await self._stored_bytes(ctx, None)
            quotas.tenants.check(tenant, before, before + size_bytes)
        if quotas.of_principal(tenant, name):
            before = await self._stored_bytes(ctx, name)
            quotas.check_principal(tenant, name, before, before + size_bytes)

    async def _stored_bytes(self, ctx: RequestContext, stored_by: str | None) -> int:
        """Of the tenant's documents and items; ``stored_by`` not None: of those of this principal."""
        own = [d for d in self._documents.documents() if d.tenant == ctx.tenant]
        kept = await asyncio.to_thread(self._items.num_bytes, ctx.tenant, stored_by)
        return kept + await self._bytes_of(ctx, [d for d in own if stored_by in (None, d.stored_by)])

    async def tenants(self, ctx: RequestContext) -> tuple[TenantStats, ...]:
        """With the sizes that chunks have now; with those last seen where a node does not answer."""
        documents = self._documents.documents()
        referenced = {c for d in documents for c in d.chunk_ids}
        try:
            await self._learn(ctx, referenced)
        except KvquiltError as error:
            log.warning("what tenants have is told by older sizes: %s", error.detail)
        self._usage.forget_all_but(referenced)
        readable = [d for d in documents if d.readable_by(ctx.principal)]
        items = await asyncio.to_thread(self._items.usage, ctx.principal)
        return self._usage.tenants(readable, self._quotas, items)

    def _readable(self, ctx: RequestContext, pin: Pin) -> list[Document]:
        """Of what ``pin`` means the documents that the caller may read."""
        return [d for d in self._pins.documents_of([pin]) if d.readable_by(ctx.principal)]

    async def _bytes_of(self, ctx: RequestContext, documents: Sequence[Document]) -> int:
        chunk_ids = {c for d in documents for c in d.chunk_ids}
        await self._learn(ctx, self._usage.unknown(chunk_ids))
        return self._usage.bytes_of(chunk_ids)

    async def _learn(self, ctx: RequestContext, chunk_ids: Collection[str]) -> None:
        """The sizes of these chunks: by listing where there are many, for asking for each takes a while in an
        object store."""
        if len(chunk_ids) <= _IDS_PER_CALL:
            ids = list(chunk_ids)
            answers, _ = await self._neighbours.ask(lambda peer: peer.stat(ctx, ids)) if ids else ({}, 0)
            self._usage.learn(s for stats in answers.values() for s in stats)
            self._usage.learn(await self._own.stat(ctx, ids))
            return
        after, truncated = "", True
        while truncated:
            page = await self.list_page(ctx, after)
            self._usage.learn(page.chunks)
            truncated = page.truncated and bool(page.chunks)
            after = page.chunks[-1].chunk_id if page.chunks else ""

    def check_invariants(self) -> None:
        self._pins.check_invariants()
