"""The RPCs of ``kvquilt.v1.Ingest``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from protos.kvquilt.v1 import common_pb2, ingest_pb2
from services.ingestion.service import IngestionService
from shared.clients.health import ServiceHealth, health_to_pb
from shared.clients.ingest import info_to_pb, progress_to_pb, source_of
from shared.errors import InvalidRequest, KvquiltError
from shared.request import RequestContext
from shared.rpc import server_stream, unary


class IngestHandlers:
    """``run_deadline_s`` applies to runs whose caller names no deadline: they take longer than other
    requests."""

    def __init__(self, service: IngestionService, run_deadline_s: float) -> None:
        self._service = service
        self._run_deadline_ms = int(run_deadline_s * 1000)

    @server_stream
    async def Upsert(
        self, request: ingest_pb2.UpsertRequest, ctx: RequestContext
    ) -> AsyncIterator[ingest_pb2.UpsertProgress]:
        ctx = self._run_context(request.meta)
        if request.re_encode and request.documents:
            raise InvalidRequest("documents: must be empty with re_encode")
        if request.re_encode:
            progress = self._service.re_encode(ctx, request.collection)
        else:
            progress = self._service.upsert(
                ctx, request.collection, [source_of(d) for d in request.documents]
            )
        async with aclosing(progress):
            async for event in progress:
                yield progress_to_pb(event)

    @server_stream
    async def Rebuild(
        self, request: ingest_pb2.RebuildRequest, ctx: RequestContext
    ) -> AsyncIterator[ingest_pb2.UpsertProgress]:
        async with aclosing(
            self._service.upkeep.rebuild(self._run_context(request.meta), request.collection)
        ) as progress:
            async for event in progress:
                yield progress_to_pb(event)

    @server_stream
    async def Refresh(
        self, request: ingest_pb2.RefreshRequest, ctx: RequestContext
    ) -> AsyncIterator[ingest_pb2.UpsertProgress]:
        progress = self._service.upkeep.refresh(
            self._run_context(request.meta), request.collection, request.chunk_ids, request.encoding
        )
        async with aclosing(progress):
            async for event in progress:
                yield progress_to_pb(event)

    @unary(ingest_pb2.DeleteDocumentsResponse)
    async def DeleteDocuments(
        self, request: ingest_pb2.DeleteDocumentsRequest, ctx: RequestContext
    ) -> ingest_pb2.DeleteDocumentsResponse:
        ctx = self._run_context(request.meta)
        deleted = await self._service.delete(ctx, request.collection, request.document_ids, request.all)
        return ingest_pb2.DeleteDocumentsResponse(
            num_documents=deleted.num_documents, num_chunks=deleted.num_chunks, not_found=deleted.not_found
        )

    @unary(ingest_pb2.ListDocumentsResponse)
    async def ListDocuments(
        self, request: ingest_pb2.ListDocumentsRequest, ctx: RequestContext
    ) -> ingest_pb2.ListDocumentsResponse:
        page = await self._service.list_documents(ctx, request.collection, request.start_after, request.limit)
        return ingest_pb2.ListDocumentsResponse(
            documents=map(info_to_pb, page.documents), truncated=page.truncated
        )

    @unary(common_pb2.HealthResponse)
    async def Health(
        self, request: common_pb2.HealthRequest, ctx: RequestContext
    ) -> common_pb2.HealthResponse:
        try:
            note = await self._service.check_ready(ctx)
        except KvquiltError as error:
            return health_to_pb(ServiceHealth("ingestion", False, error.detail))
        return health_to_pb(ServiceHealth("ingestion", True, note))

    def _run_context(self, meta: common_pb2.RequestMeta) -> RequestContext:
        return RequestContext.create(meta.request_id, meta.tenant, meta.deadline_ms, self._run_deadline_ms)
