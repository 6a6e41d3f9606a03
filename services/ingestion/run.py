"""A run over many documents: several at a time, and none stops the others, unless what failed would fail them
all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from services.ingestion.upsert import Report
from shared.documents import Stage, UpsertProgress
from shared.errors import DeadlineExceeded, InternalError, KvquiltError, StorageFull, Unavailable
from shared.identity import digest
from shared.request import RequestContext
from shared.tracing.names import DOCUMENT
from shared.tracing.spans import span

log = logging.getLogger(__name__)

# These would meet every other document too.
_STOPPING = (StorageFull, Unavailable, DeadlineExceeded)

Work = Callable[[RequestContext, str, Report], Awaitable[None]]
"""One document, by its id. Reports its stages; a failure is raised."""


async def run_documents(
    ctx: RequestContext, document_ids: Sequence[str], work: Work, parallel: int
) -> AsyncGenerator[UpsertProgress, None]:
    """Progress of all documents as it comes; each ends with STORED, UNCHANGED or FAILED. Closing the
    generator stops the work. In traces a document goes by a hash of its id."""
    events: asyncio.Queue[UpsertProgress | None] = asyncio.Queue()
    pending = iter(document_ids)
    stopped_by: list[KvquiltError] = []

    async def worker() -> None:
        for document_id in pending:
            if stopped_by:
                events.put_nowait(
                    _failed(document_id, stopped_by[0], "not started, because the run was stopped: ")
                )
                continue
            try:
                named = {DOCUMENT: digest(document_id.encode(), size=4)}
                with span(ctx, "ingest document", named) as stage:
                    await work(stage.ctx, document_id, events.put_nowait)
            except KvquiltError as error:
                events.put_nowait(_failed(document_id, error))
                if isinstance(error, _STOPPING):
                    stopped_by.append(error)
            except Exception:
                log.exception("document %s failed unexpectedly", document_id)
                events.put_nowait(
                    _failed(
                        document_id, InternalError("failed unexpectedly; the service's log has the reason")
                    )
                )

    async def all_workers() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(parallel, len(document_ids))):
                    group.create_task(worker())
        finally:
            events.put_nowait(None)

    running = asyncio.create_task(all_workers())
    try:
        while (event := await events.get()) is not None:
            yield event
        await running
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def _failed(document_id: str, error: KvquiltError, why: str = "") -> UpsertProgress:
    return UpsertProgress(document_id, Stage.FAILED, error=why + error.detail, error_code=error.code)
