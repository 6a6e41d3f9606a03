"""Client of the ingestion service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from google.protobuf.message import Message

from protos.kvquilt.v1 import ingest_pb2
from shared.clients.service import ServiceClient
from shared.documents import (
    DeletedDocuments,
    DocumentInfo,
    DocumentPage,
    SourceDocument,
    Stage,
    UpsertProgress,
)
from shared.errors import Unavailable
from shared.request import RequestContext
from shared.wire.ingest import DELETED, PAGE, PROGRESS, SOURCE

SERVICE = "kvquilt.v1.Ingest"
APPLICATION = "ingestion"

_LAST_STAGES = (Stage.STORED, Stage.UNCHANGED, Stage.FAILED, Stage.WOULD_STORE)


class IngestClient(ServiceClient):
    async def upsert(
        self,
        ctx: RequestContext,
        collection: str,
        documents: Sequence[SourceDocument],
        dry_run: bool = False,
    ) -> AsyncGenerator[UpsertProgress, None]:
        """Progress of every document; each ends with STORED, UNCHANGED or FAILED, with ``dry_run`` with
        WOULD_STORE instead of STORED. One message carries them all, so a large folder takes several calls.

        Raises:
            Unavailable: the service went away before every document had ended; the same call goes on from
            there.
        """
        request = ingest_pb2.UpsertRequest(
            collection=collection, documents=map(SOURCE.to_pb, documents), dry_run=dry_run
        )
        unfinished = {d.document_id for d in documents}
        async with aclosing(self._progress(ctx, "Upsert", request)) as progress:
            async for event in progress:
                if event.stage in _LAST_STAGES:
                    unfinished.discard(event.document_id)
                yield event
        if unfinished:
            raise Unavailable(
                f"ingestion ended before {len(unfinished)} documents were done; run it again to go on"
            )

    def re_encode(self, ctx: RequestContext, collection: str) -> AsyncGenerator[UpsertProgress, None]:
        """Makes every document that belongs to another model anew for the one being served, from its stored
        text."""
        request = ingest_pb2.UpsertRequest(collection=collection, re_encode=True)
        return self._progress(ctx, "Upsert", request)

    def rebuild(self, ctx: RequestContext, collection: str = "") -> AsyncGenerator[UpsertProgress, None]:
        """Makes the index anew from the stored manifests; ``collection`` empty: all of the tenant's. Each
        document ends with STORED, UNCHANGED, REMOVED or FAILED.

        Raises:
            NotFound: neither documents nor the index know the collection.
        """
        request = ingest_pb2.RebuildRequest(collection=collection)
        return self._progress(ctx, "Rebuild", request)

    def refresh(
        self, ctx: RequestContext, collection: str = "", chunk_ids: Sequence[str] = (), encoding: str = ""
    ) -> AsyncGenerator[UpsertProgress, None]:
        """Makes the KV of documents whole: what is missing is computed. ``collection`` empty: all of the
        tenant's; ``chunk_ids``: only documents that refer to one of these, and only these chunks;
        ``encoding``: all their KV is in it afterwards.

        Raises:
            NotFound: no such collection.
        """
        request = ingest_pb2.RefreshRequest(collection=collection, chunk_ids=chunk_ids, encoding=encoding)
        return self._progress(ctx, "Refresh", request)

    async def delete(
        self, ctx: RequestContext, collection: str, document_ids: Sequence[str] = (), everything: bool = False
    ) -> DeletedDocuments:
        """The named documents, or the whole collection."""
        request = ingest_pb2.DeleteDocumentsRequest(
            collection=collection, document_ids=document_ids, all=everything
        )
        return DELETED.of(await self.ask(ctx, "DeleteDocuments", request, ingest_pb2.DeleteDocumentsResponse))

    async def list_page(
        self, ctx: RequestContext, collection: str = "", start_after: str = "", limit: int = 0
    ) -> DocumentPage:
        request = ingest_pb2.ListDocumentsRequest(collection=collection, start_after=start_after, limit=limit)
        return PAGE.of(await self.ask(ctx, "ListDocuments", request, ingest_pb2.ListDocumentsResponse))

    async def list(self, ctx: RequestContext, collection: str = "") -> AsyncGenerator[DocumentInfo, None]:
        """The documents of ``collection`` (empty: of all), page by page."""
        after = ""
        while True:
            page = await self.list_page(ctx, collection, after)
            for document in page.documents:
                yield document
            if not page.truncated:
                return
            after = page.after(collection)

    def _progress(
        self, ctx: RequestContext, method: str, request: Message
    ) -> AsyncGenerator[UpsertProgress, None]:
        return self.follow(ctx, method, request, ingest_pb2.UpsertProgress, PROGRESS.of)
