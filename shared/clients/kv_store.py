"""Client of the ``kv_store`` application: chunk KV by identity, and the documents made of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from protos.kvquilt.v1 import kv_store_pb2 as pb
from shared.clients import health as health_rpc
from shared.clients.health import ServiceHealth, meta_of
from shared.clients.transport import ClientStreaming, Transport
from shared.kv_types import (
    ChunkPage,
    ChunkStat,
    CollectedGarbage,
    DamagedCopy,
    DeletedChunks,
    Manifest,
    ManifestChunk,
    ManifestPage,
    NodeStats,
    OpenedChunk,
    PinnedChunks,
    PinnedDocuments,
    StoreStats,
    TenantStats,
    TierStats,
    VerifyProgress,
)
from shared.request import RequestContext

__all__ = [
    "ChunkPage",
    "ChunkStat",
    "DeletedChunks",
    "KvStoreClient",
    "Manifest",
    "ManifestChunk",
    "ManifestPage",
    "OpenedChunk",
    "manifest_from_pb",
    "manifest_to_pb",
]
APPLICATION = "kv_store"
SERVICE = "kvquilt.v1.KvStore"


class KvStoreClient:
    """Every method raises ``shared.errors``; ``Unavailable`` ones may be tried again."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def stat(
        self, ctx: RequestContext, chunk_ids: Sequence[str], held: bool = False
    ) -> list[ChunkStat]:
        """In the order asked for. ``held``, of one node's agent: only what that node holds itself."""
        request = pb.StatRequest(meta=meta_of(ctx), chunk_ids=chunk_ids, held=held)
        response = await self._transport.unary("Stat", request, pb.StatResponse, ctx.remaining_s)
        return [_stat_from_pb(c) for c in response.chunks]

    async def open(
        self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = ""
    ) -> list[OpenedChunk]:
        """Where the chunks' files can be read on node ``node_id`` (empty: on the store's first node), in the
        order asked for.

        A file may be deleted before it is read: ``NotFound`` from ``ChunkFile.open`` then means absent.
        """
        request = pb.OpenRequest(meta=meta_of(ctx), chunk_ids=chunk_ids, node_id=node_id)
        response = await self._transport.unary("Open", request, pb.OpenResponse, ctx.remaining_s)
        return [
            OpenedChunk(
                c.chunk_id,
                c.exists,
                c.path,
                c.size_bytes,
                tuple((r.offset, r.length) for r in c.layers),
                c.progress,
                c.tier,
            )
            for c in response.chunks
        ]

    async def stage(self, ctx: RequestContext, node_id: str = "") -> str:
        """A directory on node ``node_id`` in which a file for ``adopt`` may be written."""
        request = pb.StageRequest(meta=meta_of(ctx), node_id=node_id)
        return (await self._transport.unary("Stage", request, pb.StageResponse, ctx.remaining_s)).directory

    async def adopt(
        self,
        ctx: RequestContext,
        chunk_id: str,
        node_id: str,
        path: str,
        replace: bool = False,
        behind: bool = False,
    ) -> bool:
        """Gives the file at ``path``, in the staging directory of ``node_id``, to the store, which makes it
        durable.

        Returns whether the chunk was stored already (``replace`` then replaces it; otherwise the new file is
        dropped).
        ``behind``: acknowledged once durable on that node's disk; it reaches the object store later.

        Raises:
            CorruptData: the file is not a whole chunk file, or of another chunk.
            InvalidRequest: ``path`` is not in the staging directory.
            StorageFull: no space left.
        """
        request = pb.AdoptRequest(
            meta=meta_of(ctx), chunk_id=chunk_id, node_id=node_id, path=path, replace=replace, behind=behind
        )
        return (await self._transport.unary("Adopt", request, pb.PutResponse, ctx.remaining_s)).existed

    async def put(
        self,
        ctx: RequestContext,
        chunk_id: str,
        size_bytes: int,
        pieces: AsyncIterator[bytes],
        replace: bool = False,
    ) -> bool:
        """Sends a chunk's file of ``size_bytes``, in ``pieces`` of about 1 MiB; returns whether it was stored
        already.

        Raises:
            CorruptData: what arrived is not a whole chunk file, or of another chunk.
            StorageFull: no space left.
            TypeError: the transport cannot stream requests (a Serve handle): use ``stage`` and ``adopt``.
        """
        if not isinstance(self._transport, ClientStreaming):
            raise TypeError(f"{type(self._transport).__name__} cannot stream requests")

        async def requests() -> AsyncIterator[pb.PutRequest]:
            header = pb.PutHeader(
                meta=meta_of(ctx), chunk_id=chunk_id, size_bytes=size_bytes, replace=replace
            )
            yield pb.PutRequest(header=header)
            async for piece in pieces:
                yield pb.PutRequest(data=piece)

        return (
            await self._transport.client_stream("Put", requests(), pb.PutResponse, ctx.remaining_s)
        ).existed

    async def get(
        self, ctx: RequestContext, chunk_id: str, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of a chunk's file, in pieces.

        Raises:
            NotFound: not stored.
        """
        byte_range = (
            None if offset == 0 and length is None else pb.ByteRange(offset=offset, length=length or 0)
        )
        request = pb.GetRequest(meta=meta_of(ctx), chunk_id=chunk_id, range=byte_range)
        responses = self._transport.stream("Get", request, pb.GetResponse, ctx.remaining_s)
        try:
            async for response in responses:
                yield response.data
        finally:
            await responses.aclose()

    async def delete(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> DeletedChunks:
        """Removes chunks that no document refers to."""
        request = pb.DeleteChunksRequest(meta=meta_of(ctx), chunk_ids=chunk_ids)
        response = await self._transport.unary("Delete", request, pb.DeleteChunksResponse, ctx.remaining_s)
        return DeletedChunks(tuple(response.deleted), tuple(response.referenced))

    async def list_page(self, ctx: RequestContext, start_after: str = "", limit: int = 0) -> ChunkPage:
        request = pb.ListChunksRequest(meta=meta_of(ctx), start_after=start_after, limit=limit)
        response = await self._transport.unary("List", request, pb.ListChunksResponse, ctx.remaining_s)
        return ChunkPage(tuple(_stat_from_pb(c) for c in response.chunks), response.truncated)

    async def list_chunks(self, ctx: RequestContext) -> AsyncGenerator[ChunkStat, None]:
        """All stored chunks in the order of their ids, page by page."""
        page = await self.list_page(ctx)
        while True:
            for chunk in page.chunks:
                yield chunk
            if not page.truncated:
                return
            page = await self.list_page(ctx, page.chunks[-1].chunk_id)

    async def put_manifest(self, ctx: RequestContext, manifest: Manifest) -> list[str]:
        """Stores a document, replacing the one of the same id; returns the chunks that were removed with the
        old one.

        Raises:
            FailedPrecondition: chunks that it names are not stored: prefill them again.
        """
        request = pb.PutManifestRequest(meta=meta_of(ctx), manifest=manifest_to_pb(manifest))
        response = await self._transport.unary(
            "PutManifest", request, pb.PutManifestResponse, ctx.remaining_s
        )
        return [*response.deleted_chunk_ids]

    async def get_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> Manifest:
        """
        Raises:
            NotFound: no such document.
        """
        request = pb.GetManifestRequest(meta=meta_of(ctx), collection=collection, document_id=document_id)
        response = await self._transport.unary(
            "GetManifest", request, pb.GetManifestResponse, ctx.remaining_s
        )
        return manifest_from_pb(response.manifest)

    async def manifest_page(
        self,
        ctx: RequestContext,
        collection: str = "",
        start_after: str = "",
        limit: int = 0,
        summary: bool = False,
    ) -> ManifestPage:
        request = pb.ListManifestsRequest(
            meta=meta_of(ctx), collection=collection, start_after=start_after, limit=limit, summary=summary
        )
        response = await self._transport.unary(
            "ListManifests", request, pb.ListManifestsResponse, ctx.remaining_s
        )
        return ManifestPage(tuple(manifest_from_pb(m) for m in response.manifests), response.truncated)

    async def list_manifests(
        self, ctx: RequestContext, collection: str = "", summary: bool = False
    ) -> AsyncGenerator[Manifest, None]:
        """The documents of ``collection`` (empty: of all of the tenant's) in order, fetched page by page."""
        page = await self.manifest_page(ctx, collection, summary=summary)
        while True:
            for manifest in page.manifests:
                yield manifest
            if not page.truncated:
                return
            page = await self.manifest_page(
                ctx, collection, page.manifests[-1].cursor(collection), summary=summary
            )

    async def delete_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> list[str]:
        """Removes a document; returns the chunks that were removed with it.

        Raises:
            NotFound: no such document.
        """
        request = pb.DeleteManifestRequest(meta=meta_of(ctx), collection=collection, document_id=document_id)
        response = await self._transport.unary(
            "DeleteManifest", request, pb.DeleteManifestResponse, ctx.remaining_s
        )
        return [*response.deleted_chunk_ids]

    async def prefetch(self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "") -> None:
        """Starts bringing chunks to ``node_id`` (empty: to every node that asked for chunks lately) and
        returns at once."""
        request = pb.PrefetchRequest(meta=meta_of(ctx), chunk_ids=chunk_ids, node_id=node_id)
        await self._transport.unary("Prefetch", request, pb.PrefetchResponse, ctx.remaining_s)

    async def stats(self, ctx: RequestContext) -> StoreStats:
        """What every tier holds, to the byte."""
        response = await self._transport.unary(
            "Stats", pb.StatsRequest(meta=meta_of(ctx)), pb.StatsResponse, ctx.remaining_s
        )
        return StoreStats(
            nodes=tuple(
                NodeStats(n.node_id, n.home, tuple(_tier_from_pb(t) for t in n.tiers), dict(n.counters))
                for n in response.nodes
            ),
            objects=_tier_from_pb(response.objects) if response.HasField("objects") else None,
            tenants=tuple(
                TenantStats(t.tenant, t.num_documents, t.num_bytes, t.quota_bytes) for t in response.tenants
            ),
            num_unreachable=response.num_unreachable,
        )

    async def verify(self, ctx: RequestContext, repair: bool = False) -> AsyncGenerator[VerifyProgress, None]:
        """Reads and verifies every copy in every tier; ``repair``: damaged ones are removed and restored from
        good ones."""
        request = pb.VerifyRequest(meta=meta_of(ctx), repair=repair)
        responses = self._transport.stream("Verify", request, pb.VerifyProgress, ctx.remaining_s)
        try:
            async for r in responses:
                damaged = tuple(
                    DamagedCopy(d.chunk_id, d.node_id, d.tier, d.reason, d.restored) for d in r.damaged
                )
                yield VerifyProgress(r.num_copies, r.num_bytes, damaged, tuple(r.missing_chunk_ids))
        finally:
            await responses.aclose()

    async def collect_garbage(
        self, ctx: RequestContext, grace_s: float, dry_run: bool = False, chunk_ids: Sequence[str] = ()
    ) -> CollectedGarbage:
        """Removes chunks that no document refers to, that nobody reads, and that were stored at least
        ``grace_s`` ago.

        ``chunk_ids``, to one node's agent: nothing is removed; ``kept`` are those that must stay because of
        this node."""
        request = pb.CollectGarbageRequest(
            meta=meta_of(ctx), grace_s=grace_s, dry_run=dry_run, chunk_ids=chunk_ids
        )
        response = await self._transport.unary(
            "CollectGarbage", request, pb.CollectGarbageResponse, ctx.remaining_s
        )
        return CollectedGarbage(
            response.num_chunks, response.num_bytes, response.num_kept, tuple(response.kept_chunk_ids)
        )

    async def pin(
        self, ctx: RequestContext, collection: str, document_id: str = "", unpin: bool = False
    ) -> int:
        """Keeps the documents in the nodes' tiers; ``document_id`` empty: the whole collection, later
        documents included.

        Returns the bytes that are pinned now, over all tenants.

        Raises:
            NotFound: no such collection or document.
            StorageFull: the nodes' disks could hold nothing else any more.
        """
        request = pb.PinRequest(
            meta=meta_of(ctx), collection=collection, document_id=document_id, unpin=unpin
        )
        return (await self._transport.unary("Pin", request, pb.PinResponse, ctx.remaining_s)).pinned_bytes

    async def list_pins(self, ctx: RequestContext) -> list[PinnedDocuments]:
        """The tenant's."""
        request = pb.ListPinsRequest(meta=meta_of(ctx))
        response = await self._transport.unary("ListPins", request, pb.ListPinsResponse, ctx.remaining_s)
        return [PinnedDocuments(p.collection, p.document_id, p.num_bytes) for p in response.pins]

    async def list_pinned_chunks(self, ctx: RequestContext, known_version: str = "") -> PinnedChunks:
        """Over all tenants; without the ids where ``known_version`` is what holds."""
        request = pb.ListPinnedChunksRequest(meta=meta_of(ctx), known_version=known_version)
        version, chunk_ids = "", set[str]()
        responses = self._transport.stream(
            "ListPinnedChunks", request, pb.ListPinnedChunksResponse, ctx.remaining_s
        )
        async with aclosing(responses):
            async for response in responses:
                version = response.version
                chunk_ids.update(response.chunk_ids)
        return PinnedChunks(version, frozenset(chunk_ids))

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        return await health_rpc.health(self._transport, ctx)


def _stat_from_pb(c: pb.ChunkStat) -> ChunkStat:
    return ChunkStat(c.chunk_id, c.exists, c.size_bytes, c.modified_s, c.location)


def _tier_from_pb(t: pb.TierStats) -> TierStats:
    return TierStats(t.tier, t.num_chunks, t.num_bytes, t.capacity_bytes, t.pinned_bytes)


def manifest_to_pb(m: Manifest) -> pb.Manifest:
    return pb.Manifest(
        tenant=m.tenant,
        collection=m.collection,
        document_id=m.document_id,
        title=m.title,
        source_hash=m.source_hash,
        model_fingerprint=m.model_fingerprint,
        prefix_ids=m.prefix_ids,
        chunks=[
            pb.ManifestChunk(
                chunk_id=c.chunk_id,
                token_ids=c.token_ids,
                char_start=c.char_start,
                char_end=c.char_end,
                text=c.text,
                heading=c.heading,
                auxiliary_id=c.auxiliary_id,
            )
            for c in m.chunks
        ],
        metadata=m.metadata,
        created_s=m.created_s,
        auxiliary=m.auxiliary,
    )


def manifest_from_pb(m: pb.Manifest) -> Manifest:
    return Manifest(
        tenant=m.tenant,
        collection=m.collection,
        document_id=m.document_id,
        title=m.title,
        source_hash=m.source_hash,
        model_fingerprint=m.model_fingerprint,
        prefix_ids=tuple(m.prefix_ids),
        chunks=tuple(
            ManifestChunk(
                c.chunk_id, tuple(c.token_ids), c.char_start, c.char_end, c.text, c.heading, c.auxiliary_id
            )
            for c in m.chunks
        ),
        metadata=dict(m.metadata),
        created_s=m.created_s,
        auxiliary=m.auxiliary,
    )
