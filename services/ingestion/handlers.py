"""The RPCs of ``kvquilt.v1.Ingest``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from protos.kvquilt.v1 import common_pb2, ingest_pb2
from services.ingestion.metering import count
from services.ingestion.service import IngestionService
from shared.admission.charging import charged
from shared.clients.health import ServiceHealth
from shared.documents import Stage, UpsertProgress
from shared.errors import InvalidRequest
from shared.request import RequestContext
from shared.rpc import HealthServicer, server_stream, unary
from shared.streams import mapped
from shared.wire.ingest import DELETED, PAGE, PROGRESS, SOURCE


class IngestHandlers(HealthServicer):
    """``run_deadline_s`` applies to runs whose caller names no deadline: they take longer than other
    requests."""

    application = "ingestion"
    begins_traces = frozenset({"Upsert", "Rebuild", "Refresh"})

    def __init__(self, service: IngestionService, run_deadline_s: float) -> None:
        self._service = service
        self._run_deadline_s = run_deadline_s

    @server_stream
    def Upsert(
        self, request: ingest_pb2.UpsertRequest, ctx: RequestContext
    ) -> AsyncIterator[ingest_pb2.UpsertProgress]:
        ctx = self._run_context(ctx, request.meta)
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
        return mapped(charged(self.door, ctx, progress, _tokens_of), self._told(ctx))

    @server_stream
    def Rebuild(
        self, request: ingest_pb2.RebuildRequest, ctx: RequestContext
    ) -> AsyncIterator[ingest_pb2.UpsertProgress]:
        progress = self._service.upkeep.rebuild(self._run_context(ctx, request.meta), request.collection)
        return mapped(progress, PROGRESS.to_pb)

    @server_stream
    def Refresh(
        self, request: ingest_pb2.RefreshRequest, ctx: RequestContext
    ) -> AsyncIterator[ingest_pb2.UpsertProgress]:
        progress = self._service.upkeep.refresh(
            self._run_context(ctx, request.meta), request.collection, request.chunk_ids, request.encoding
        )
        return mapped(progress, PROGRESS.to_pb)

    @unary
    async def DeleteDocuments(
        self, request: ingest_pb2.DeleteDocumentsRequest, ctx: RequestContext
    ) -> ingest_pb2.DeleteDocumentsResponse:
        ctx = self._run_context(ctx, request.meta)
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

    def _told(self, ctx: RequestContext) -> Callable[[UpsertProgress], ingest_pb2.UpsertProgress]:
        """The message of a progress that is counted on the way."""

        def told(progress: UpsertProgress) -> ingest_pb2.UpsertProgress:
            if self.metrics is not None:
                count(self.metrics, ctx.tenant, progress)
            return PROGRESS.to_pb(progress)

        return told

    def _run_context(self, ctx: RequestContext, meta: common_pb2.RequestMeta) -> RequestContext:
        """Of a run whose caller names no deadline: a whole folder takes longer than a question."""
        return ctx if meta.deadline_ms else ctx.lasting(self._run_deadline_s)


def _tokens_of(progress: UpsertProgress) -> int:
    return progress.num_tokens if progress.stage is Stage.STORED else 0
