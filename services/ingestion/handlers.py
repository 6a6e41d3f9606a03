"""The RPCs of ``kvquilt.v1.Ingest``."""

from __future__ import annotations

from collections.abc import AsyncIterator

from protos.kvquilt.v1 import common_pb2, ingest_pb2
from services.ingestion.service import IngestionService
from shared.clients.health import ServiceHealth
from shared.errors import InvalidRequest
from shared.request import RequestContext
from shared.rpc import HealthServicer, server_stream, unary
from shared.streams import mapped
from shared.wire.ingest import DELETED, PAGE, PROGRESS, SOURCE


class IngestHandlers(HealthServicer):
    """``run_deadline_s`` applies to runs whose caller names no deadline: they take longer than other
    requests."""

    application = "ingestion"

    def __init__(self, service: IngestionService, run_deadline_s: float) -> None:
        self._service = service
        self._run_deadline_ms = int(run_deadline_s * 1000)

    @server_stream
    def Upsert(
        self, request: ingest_pb2.UpsertRequest, ctx: RequestContext
    ) -> AsyncIterator[ingest_pb2.UpsertProgress]:
        ctx = self._run_context(request.meta)
        if request.re_encode and request.documents:
            raise InvalidRequest("documents: must be empty with re_encode")
        if request.re_encode and request.dry_run:
            raise InvalidRequest("dry_run: not with re_encode")
        if request.re_encode:
            progress = self._service.re_encode(ctx, request.collection)
        else:
            progress = self._service.upsert(
                ctx, request.collection, [SOURCE.of(d) for d in request.documents], request.dry_run
            )
        return mapped(progress, PROGRESS.to_pb)

    @server_stream
    def Rebuild(
        self, request: ingest_pb2.RebuildRequest, ctx: RequestContext
    ) -> AsyncIterator[ingest_pb2.UpsertProgress]:
        progress = self._service.upkeep.rebuild(self._run_context(request.meta), request.collection)
        return mapped(progress, PROGRESS.to_pb)

    @server_stream
    def Refresh(
        self, request: ingest_pb2.RefreshRequest, ctx: RequestContext
    ) -> AsyncIterator[ingest_pb2.UpsertProgress]:
        progress = self._service.upkeep.refresh(
            self._run_context(request.meta), request.collection, request.chunk_ids, request.encoding
        )
        return mapped(progress, PROGRESS.to_pb)

    @unary
    async def DeleteDocuments(
        self, request: ingest_pb2.DeleteDocumentsRequest, ctx: RequestContext
    ) -> ingest_pb2.DeleteDocumentsResponse:
        ctx = self._run_context(request.meta)
        deleted = await self._service.delete(ctx, request.collection, request.document_ids, request.all)
        return DELETED.to_pb(deleted)

    @unary
    async def ListDocuments(
        self, request: ingest_pb2.ListDocumentsRequest, ctx: RequestContext
    ) -> ingest_pb2.ListDocumentsResponse:
        page = await self._service.list_documents(ctx, request.collection, request.start_after, request.limit)
        return PAGE.to_pb(page)

    async def healthy(self, ctx: RequestContext) -> ServiceHealth:
        return ServiceHealth(self.application, ready=True, detail=await self._service.check_ready(ctx))

    def _run_context(self, meta: common_pb2.RequestMeta) -> RequestContext:
        return RequestContext.create(meta.request_id, meta.tenant, meta.deadline_ms, self._run_deadline_ms)
