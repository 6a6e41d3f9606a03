"""Client of the ``kv_store`` application: chunk KV by identity, and the documents made of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from protos.kvquilt.v1 import kv_store_pb2 as pb
from shared.clients import health as health_rpc
from shared.clients.health import ServiceHealth, meta_of
from shared.clients.kv_messages import (
    damaged_from_pb,
    manifest_from_pb,
    manifest_to_pb,
    stat_from_pb,
    stats_from_pb,
)
from shared.clients.transport import ClientStreaming, Transport
from shared.kv_types import (
    ChunkPage,
    ChunkStat,
    CollectedGarbage,
    DeletedChunks,
    Manifest,
    ManifestPage,
    PinnedDocuments,
    StoreStats,
    VerifyProgress,
)
from shared.request import RequestContext

APPLICATION = "kv_store"
SERVICE = "kvquilt.v1.KvStore"


class KvStoreClient:
    """Every method raises ``shared.errors``; ``Unavailable`` ones may be tried again."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def stat(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[ChunkStat]:
        """In the order asked for."""
        request = pb.StatRequest(meta=meta_of(ctx), chunk_ids=chunk_ids)
        response = await self._transport.unary("Stat", request, pb.StatResponse, ctx.remaining_s)
        return [stat_from_pb(c) for c in response.chunks]

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
            TypeError: the transport cannot stream requests (a Serve handle).
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
        return ChunkPage(tuple(stat_from_pb(c) for c in response.chunks), response.truncated)

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
        """Starts bringing chunks to ``node_id`` (empty: to every node on which chunks were opened
        lately) and returns at once."""
        request = pb.PrefetchRequest(meta=meta_of(ctx), chunk_ids=chunk_ids, node_id=node_id)
        await self._transport.unary("Prefetch", request, pb.PrefetchResponse, ctx.remaining_s)

    async def stats(self, ctx: RequestContext) -> StoreStats:
        """What every tier holds, to the byte."""
        response = await self._transport.unary(
            "Stats", pb.StatsRequest(meta=meta_of(ctx)), pb.StatsResponse, ctx.remaining_s
        )
        return stats_from_pb(response)

    async def verify(self, ctx: RequestContext, repair: bool = False) -> AsyncGenerator[VerifyProgress, None]:
        """Reads and verifies every copy in every tier; ``repair``: damaged ones are removed and restored from
        good ones."""
        request = pb.VerifyRequest(meta=meta_of(ctx), repair=repair)
        responses = self._transport.stream("Verify", request, pb.VerifyProgress, ctx.remaining_s)
        try:
            async for r in responses:
                damaged = tuple(map(damaged_from_pb, r.damaged))
                yield VerifyProgress(r.num_copies, r.num_bytes, damaged, tuple(r.missing_chunk_ids))
        finally:
            await responses.aclose()

    async def collect_garbage(
        self, ctx: RequestContext, grace_s: float, dry_run: bool = False
    ) -> CollectedGarbage:
        """Removes chunks that no document refers to, that nobody reads, and that were stored at least
        ``grace_s`` ago."""
        request = pb.CollectGarbageRequest(meta=meta_of(ctx), grace_s=grace_s, dry_run=dry_run)
        response = await self._transport.unary(
            "CollectGarbage", request, pb.CollectGarbageResponse, ctx.remaining_s
        )
        return CollectedGarbage(response.num_chunks, response.num_bytes, response.num_kept)

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

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        return await health_rpc.health(self._transport, ctx)
