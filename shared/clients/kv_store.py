"""Client of the ``kv_store`` application: chunk KV by identity, and the documents made of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from protos.kvquilt.v1 import kv_store_pb2 as pb
from shared.clients.service import ServiceClient, meta_of
from shared.clients.transport import ClientStreaming
from shared.kv_items import Expected, Item, ItemPage
from shared.kv_reports import CollectedGarbage, StoreStats, VerifyProgress
from shared.kv_types import (
    AlikeDocuments,
    ChunkStat,
    Manifest,
    ManifestPage,
    Origin,
)
from shared.pinned import PinnedDocuments
from shared.request import RequestContext
from shared.wire.enums import EXPECTATIONS
from shared.wire.kv_store import (
    ALIKE,
    CHUNK_STAT,
    COLLECTED,
    ITEM,
    ITEM_PAGE,
    MANIFEST,
    MANIFEST_PAGE,
    PINNED,
    STATS,
    VERIFIED,
)

APPLICATION = "kv_store"
SERVICE = "kvquilt.v1.KvStore"


class KvStoreClient(ServiceClient):
    """A call that fails as ``Unavailable`` may be tried again."""

    async def stat(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[ChunkStat]:
        """In the order asked for."""
        request = pb.StatRequest(chunk_ids=chunk_ids)
        response = await self.ask(ctx, "Stat", request, pb.StatResponse)
        return [CHUNK_STAT.of(chunk) for chunk in response.chunks]

    async def put(
        self,
        ctx: RequestContext,
        chunk_id: str,
        size_bytes: int,
        pieces: AsyncIterator[bytes],
        origin: Origin | None = None,
    ) -> bool:
        """Sends a chunk's file of ``size_bytes``, in ``pieces`` of about 1 MiB; returns whether it was stored
        already.

        Raises:
            InvalidRequest: by ``origin`` it is not this chunk's, or another tenant's.
            CorruptData: what arrived is not a whole chunk file, or of another chunk.
            StorageFull: no space left.
            TypeError: the transport cannot stream requests (a Serve handle).
        """
        if not isinstance(self._transport, ClientStreaming):
            raise TypeError(f"{type(self._transport).__name__} cannot stream requests")

        async def requests() -> AsyncIterator[pb.PutRequest]:
            made_of = origin or Origin()
            header = pb.PutHeader(
                meta=meta_of(ctx),
                chunk_id=chunk_id,
                size_bytes=size_bytes,
                prefix_ids=made_of.prefix_ids,
                parent_id=made_of.parent_id,
            )
            yield pb.PutRequest(header=header)
            async for piece in pieces:
                yield pb.PutRequest(data=piece)

        return (
            await self._transport.client_stream("Put", requests(), pb.PutResponse, ctx.remaining_s)
        ).existed

    def get(
        self, ctx: RequestContext, chunk_id: str, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of a chunk's file, in pieces.

        Raises:
            NotFound: not stored.
        """
        byte_range = (
            None if offset == 0 and length is None else pb.ByteRange(offset=offset, length=length or 0)
        )
        request = pb.GetRequest(chunk_id=chunk_id, range=byte_range)
        return self.follow(ctx, "Get", request, pb.GetResponse, lambda response: response.data)

    async def put_manifest(self, ctx: RequestContext, manifest: Manifest) -> list[str]:
        """Stores a document, replacing the one of the same id; returns the chunks that were removed with the
        old one.

        Raises:
            FailedPrecondition: chunks that it names are not stored: prefill them again.
        """
        request = pb.PutManifestRequest(manifest=MANIFEST.to_pb(manifest))
        response = await self.ask(ctx, "PutManifest", request, pb.PutManifestResponse)
        return [*response.deleted_chunk_ids]

    async def check_quota(self, ctx: RequestContext, manifest: Manifest, bytes_per_token: int) -> None:
        """Looks whether a document may be stored by its size: its chunks need not be stored yet.
        ``bytes_per_token``: what those that are not will take at least.

        Raises:
            StorageFull: its tenant, or who asks, would have more than it may.
        """
        request = pb.CheckQuotaRequest(manifest=MANIFEST.to_pb(manifest), bytes_per_token=bytes_per_token)
        await self.ask(ctx, "CheckQuota", request, pb.CheckQuotaResponse)

    async def get_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> Manifest:
        """
        Raises:
            NotFound: no such document.
        """
        request = pb.GetManifestRequest(collection=collection, document_id=document_id)
        return MANIFEST.of((await self.ask(ctx, "GetManifest", request, pb.GetManifestResponse)).manifest)

    async def manifest_page(
        self,
        ctx: RequestContext,
        collection: str = "",
        start_after: str = "",
        limit: int = 0,
        summary: bool = False,
        descending: bool = False,
    ) -> ManifestPage:
        request = pb.ListManifestsRequest(
            collection=collection,
            start_after=start_after,
            limit=limit,
            summary=summary,
            descending=descending,
        )
        return MANIFEST_PAGE.of(await self.ask(ctx, "ListManifests", request, pb.ListManifestsResponse))

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
        request = pb.DeleteManifestRequest(collection=collection, document_id=document_id)
        response = await self.ask(ctx, "DeleteManifest", request, pb.DeleteManifestResponse)
        return [*response.deleted_chunk_ids]

    async def count_documents(self, ctx: RequestContext) -> list[AlikeDocuments]:
        """The tenant's documents by collection and by what they were made for."""
        request = pb.CountDocumentsRequest()
        response = await self.ask(ctx, "CountDocuments", request, pb.CountDocumentsResponse)
        return [ALIKE.of(count) for count in response.counts]

    async def put_item(
        self, ctx: RequestContext, item: Item, content: bytes = b"", expected: Expected = Expected.EITHER
    ) -> Item:
        """As it is stored: durable. One that is there keeps its content.

        Raises:
            Conflict: there is one, and it was to be new.
            NotFound: it was to be there.
            StorageFull: the caller, or whose the restored one is, or their tenant, would have more than it
                may.
            CorruptData: it was to be restored, and has another content than its digest says.
        """
        request = pb.PutItemRequest(
            item=ITEM.to_pb(item), content=content, expected=EXPECTATIONS.to_pb(expected)
        )
        return ITEM.of(await self.ask(ctx, "PutItem", request, pb.Item))

    async def get_item(
        self, ctx: RequestContext, kind: str, item_id: str, with_content: bool = False
    ) -> tuple[Item, bytes]:
        """
        Raises:
            NotFound: there is none that the caller may read.
        """
        request = pb.GetItemRequest(kind=kind, id=item_id, with_content=with_content)
        response = await self.ask(ctx, "GetItem", request, pb.GetItemResponse)
        return ITEM.of(response.item), response.content

    async def item_page(
        self,
        ctx: RequestContext,
        kind: str,
        prefix: str = "",
        start_after: str = "",
        limit: int = 0,
        descending: bool = False,
    ) -> ItemPage:
        """By id; ``kind`` empty: of all kinds, by name. ``prefix``, ``start_after``: of ids, or names."""
        request = pb.ListItemsRequest(
            kind=kind, prefix=prefix, start_after=start_after, limit=limit, descending=descending
        )
        return ITEM_PAGE.of(await self.ask(ctx, "ListItems", request, pb.ListItemsResponse))

    async def delete_item(self, ctx: RequestContext, kind: str, item_id: str) -> None:
        """Raises like ``get_item``."""
        request = pb.DeleteItemRequest(kind=kind, id=item_id)
        await self.ask(ctx, "DeleteItem", request, pb.DeleteItemResponse)

    async def readable(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[str]:
        """Those of documents that the caller may read. ``chunk_ids``: of chunks, of their auxiliary KV, or of
        what chunks are computed behind."""
        request = pb.ReadableRequest(chunk_ids=chunk_ids)
        return [*(await self.ask(ctx, "Readable", request, pb.ReadableResponse)).chunk_ids]

    async def prefetch(self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "") -> None:
        """Starts bringing chunks to ``node_id`` (empty: to every node on which chunks were opened
        lately) and returns at once."""
        request = pb.PrefetchRequest(chunk_ids=chunk_ids, node_id=node_id)
        await self.ask(ctx, "Prefetch", request, pb.PrefetchResponse)

    async def stats(self, ctx: RequestContext) -> StoreStats:
        """Counts what every tier holds, to the byte."""
        return STATS.of(await self.ask(ctx, "Stats", pb.StatsRequest(), pb.StatsResponse))

    def verify(
        self, ctx: RequestContext, repair: bool = False, seal: bool = False
    ) -> AsyncGenerator[VerifyProgress, None]:
        """Reads and verifies every copy in every tier; ``repair``: damaged ones are removed and restored from
        good ones; ``seal``: those without a seal of the current key are given one."""
        request = pb.VerifyRequest(repair=repair, seal=seal)
        return self.follow(ctx, "Verify", request, pb.VerifyProgress, VERIFIED.of)

    async def collect_garbage(
        self, ctx: RequestContext, grace_s: float, dry_run: bool = False
    ) -> CollectedGarbage:
        """Removes chunks that no document refers to, that nobody reads, and that were stored at least
        ``grace_s`` ago."""
        request = pb.CollectGarbageRequest(grace_s=grace_s, dry_run=dry_run)
        return COLLECTED.of(await self.ask(ctx, "CollectGarbage", request, pb.CollectGarbageResponse))

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
        request = pb.PinRequest(collection=collection, document_id=document_id, unpin=unpin)
        return (await self.ask(ctx, "Pin", request, pb.PinResponse)).pinned_bytes

    async def list_pins(self, ctx: RequestContext) -> list[PinnedDocuments]:
        """The tenant's."""
        request = pb.ListPinsRequest()
        response = await self.ask(ctx, "ListPins", request, pb.ListPinsResponse)
        return [PINNED.of(pin) for pin in response.pins]
