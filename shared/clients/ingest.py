"""Client of the ingestion service, and the translation between its values and its messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from google.protobuf.message import Message

from protos.kvquilt.v1 import ingest_pb2
from shared.clients import health as health_rpc
from shared.clients.health import ServiceHealth, meta_of
from shared.clients.transport import Transport
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

SERVICE = "kvquilt.v1.Ingest"
APPLICATION = "ingestion"

_PB_STAGE = {
    Stage.PARSED: ingest_pb2.UpsertProgress.STAGE_PARSED,
    Stage.PREFILLED: ingest_pb2.UpsertProgress.STAGE_PREFILLED,
    Stage.STORED: ingest_pb2.UpsertProgress.STAGE_STORED,
    Stage.UNCHANGED: ingest_pb2.UpsertProgress.STAGE_UNCHANGED,
    Stage.FAILED: ingest_pb2.UpsertProgress.STAGE_FAILED,
    Stage.REMOVED: ingest_pb2.UpsertProgress.STAGE_REMOVED,
}
_STAGE = {pb: stage for stage, pb in _PB_STAGE.items()}
_LAST_STAGES = (Stage.STORED, Stage.UNCHANGED, Stage.FAILED)


class IngestClient:
    """Every method raises ``shared.errors``; ``ctx`` says who asks and until when."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def upsert(
        self, ctx: RequestContext, collection: str, documents: Sequence[SourceDocument]
    ) -> AsyncGenerator[UpsertProgress, None]:
        """Progress of every document; each ends with STORED, UNCHANGED or FAILED. One message carries them
        all, so a large folder takes several calls.

        Raises:
            Unavailable: the service went away before every document had ended; the same call goes on from
            there.
        """
        request = ingest_pb2.UpsertRequest(
            meta=meta_of(ctx), collection=collection, documents=map(_source_to_pb, documents)
        )
        unfinished = {d.document_id for d in documents}
        async with aclosing(self._progress("Upsert", ctx, request)) as progress:
            async for event in progress:
                if event.stage in _LAST_STAGES:
                    unfinished.discard(event.document_id)
                yield event
        if unfinished:
            raise Unavailable(
                f"ingestion ended before {len(unfinished)} documents were done; run it again to go on"
            )

    async def re_encode(self, ctx: RequestContext, collection: str) -> AsyncGenerator[UpsertProgress, None]:
        """Makes every document that belongs to another model anew for the one being served, from its stored
        text."""
        request = ingest_pb2.UpsertRequest(meta=meta_of(ctx), collection=collection, re_encode=True)
        async with aclosing(self._progress("Upsert", ctx, request)) as progress:
            async for event in progress:
                yield event

    async def rebuild(
        self, ctx: RequestContext, collection: str = ""
    ) -> AsyncGenerator[UpsertProgress, None]:
        """Makes the index anew from the stored manifests; ``collection`` empty: all of the tenant's. Each
        document ends with STORED, UNCHANGED, REMOVED or FAILED.

        Raises:
            NotFound: neither documents nor the index know the collection.
        """
        request = ingest_pb2.RebuildRequest(meta=meta_of(ctx), collection=collection)
        async with aclosing(self._progress("Rebuild", ctx, request)) as progress:
            async for event in progress:
                yield event

    async def refresh(
        self, ctx: RequestContext, collection: str = "", chunk_ids: Sequence[str] = (), encoding: str = ""
    ) -> AsyncGenerator[UpsertProgress, None]:
        """Makes the KV of documents whole: what is missing is computed. ``collection`` empty: all of the
        tenant's; ``chunk_ids``: only documents that refer to one of these, and only these chunks;
        ``encoding``: all their KV is in it afterwards.

        Raises:
            NotFound: no such collection.
        """
        request = ingest_pb2.RefreshRequest(
            meta=meta_of(ctx), collection=collection, chunk_ids=chunk_ids, encoding=encoding
        )
        async with aclosing(self._progress("Refresh", ctx, request)) as progress:
            async for event in progress:
                yield event

    async def delete(
        self, ctx: RequestContext, collection: str, document_ids: Sequence[str] = (), everything: bool = False
    ) -> DeletedDocuments:
        """The named documents, or the whole collection."""
        request = ingest_pb2.DeleteDocumentsRequest(
            meta=meta_of(ctx), collection=collection, document_ids=document_ids, all=everything
        )
        response = await self._transport.unary(
            "DeleteDocuments", request, ingest_pb2.DeleteDocumentsResponse, ctx.remaining_s
        )
        return DeletedDocuments(response.num_documents, response.num_chunks, tuple(response.not_found))

    async def list_page(
        self, ctx: RequestContext, collection: str = "", start_after: str = "", limit: int = 0
    ) -> DocumentPage:
        request = ingest_pb2.ListDocumentsRequest(
            meta=meta_of(ctx), collection=collection, start_after=start_after, limit=limit
        )
        response = await self._transport.unary(
            "ListDocuments", request, ingest_pb2.ListDocumentsResponse, ctx.remaining_s
        )
        return DocumentPage(tuple(map(_info_of, response.documents)), response.truncated)

    async def list(self, ctx: RequestContext, collection: str = "") -> AsyncGenerator[DocumentInfo, None]:
        """The documents of ``collection`` (empty: of all), page by page."""
        after = ""
        while True:
            page = await self.list_page(ctx, collection, after)
            for document in page.documents:
                yield document
            if not page.truncated:
                return
            last = page.documents[-1]
            after = last.document_id if collection else f"{last.collection}/{last.document_id}"

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        return await health_rpc.health(self._transport, ctx)

    async def _progress(
        self, method: str, ctx: RequestContext, request: Message
    ) -> AsyncGenerator[UpsertProgress, None]:
        async with aclosing(
            self._transport.stream(method, request, ingest_pb2.UpsertProgress, ctx.remaining_s)
        ) as responses:
            async for response in responses:
                yield _progress_of(response)


def source_of(message: ingest_pb2.SourceDocument) -> SourceDocument:
    return SourceDocument(message.document_id, message.content, message.media_type, dict(message.metadata))


def progress_to_pb(value: UpsertProgress) -> ingest_pb2.UpsertProgress:
    return ingest_pb2.UpsertProgress(
        document_id=value.document_id,
        stage=_PB_STAGE[value.stage],
        num_chunks=value.num_chunks,
        num_chunks_done=value.num_chunks_done,
        num_tokens=value.num_tokens,
        num_chunks_reused=value.num_chunks_reused,
        error=value.error,
        error_code=value.error_code,
    )


def info_to_pb(value: DocumentInfo) -> ingest_pb2.DocumentInfo:
    return ingest_pb2.DocumentInfo(
        collection=value.collection,
        document_id=value.document_id,
        title=value.title,
        num_chunks=value.num_chunks,
        model_fingerprint=value.model_fingerprint,
        current=value.current,
        created_s=value.created_s,
    )


def _source_to_pb(value: SourceDocument) -> ingest_pb2.SourceDocument:
    return ingest_pb2.SourceDocument(
        document_id=value.document_id,
        content=value.content,
        media_type=value.media_type,
        metadata=value.metadata,
    )


def _progress_of(message: ingest_pb2.UpsertProgress) -> UpsertProgress:
    return UpsertProgress(
        document_id=message.document_id,
        stage=_STAGE[message.stage],
        num_chunks=message.num_chunks,
        num_chunks_done=message.num_chunks_done,
        num_tokens=message.num_tokens,
        num_chunks_reused=message.num_chunks_reused,
        error=message.error,
        error_code=message.error_code,
    )


def _info_of(message: ingest_pb2.DocumentInfo) -> DocumentInfo:
    return DocumentInfo(
        collection=message.collection,
        document_id=message.document_id,
        title=message.title,
        num_chunks=message.num_chunks,
        model_fingerprint=message.model_fingerprint,
        current=message.current,
        created_s=message.created_s,
    )
