"""Files on their way into collections: ingested behind the caller's back, and noted durably until they are
documents.

    attached ─► in_progress ─► a document: the note goes
                    ├────────► failed: the note says why
                    └────────► cancelled

A note that nobody works on (the gateway was started anew) is taken up again when a writer asks for it:
ingestion goes on with what is missing.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Protocol

from services.gateway.kept.files import KIND as FILE
from shared import errors
from shared.admission.entrance import Entrance
from shared.admission.turns import Turns
from shared.documents import SourceDocument, Stage, UpsertProgress
from shared.errors import KvquiltError, NotFound, Unavailable, UnreadableDocument
from shared.kv_items import Expected, Item
from shared.kv_stores import ItemStore
from shared.principals.principal import Role
from shared.request import RequestContext

log = logging.getLogger(__name__)

ATTACHMENT = "attachment"
_RUN_S = 24 * 3600.0
_AT_ONCE = 4
_PAUSES_S = (1.0, 5.0, 20.0, 60.0)
_RETRYABLE = frozenset(
    error.code for error in (errors.Unavailable, errors.Overloaded, errors.Conflict, errors.DeadlineExceeded)
)
Key = tuple[str, str]
"""Tenant, and id of the note."""


class Status(enum.StrEnum):
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Upserting(Protocol):
    def upsert(
        self, ctx: RequestContext, collection: str, documents: Sequence[SourceDocument]
    ) -> AsyncGenerator[UpsertProgress, None]: ...


class Attaching:
    """Of one replica. ``pause``: sleeps so many seconds."""

    def __init__(
        self,
        items: ItemStore,
        ingestion: Upserting,
        entrance: Entrance,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._items, self._ingestion, self._entrance, self._pause = items, ingestion, entrance, pause
        self._turns = Turns(_AT_ONCE)
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    async def note(
        self, ctx: RequestContext, collection: str, file: Item, attributes: Mapping[str, str]
    ) -> Item:
        """Durable when it returns; its ingestion has begun. ``attributes``: as metadata.

        Raises:
            StorageFull: the caller, or its tenant, would have more than it may.
        """
        fields = {
            "status": Status.IN_PROGRESS.value,
            "document": f"{file.id}/{file.fields['name']}",
            "metadata": json.dumps(attributes, sort_keys=True),
        }
        item = Item(ATTACHMENT, f"{collection}/{file.id}", fields, file.readers)
        noted = await self._items.put_item(ctx, item)
        self.go_on(ctx, noted)
        return noted

    def go_on(self, ctx: RequestContext, item: Item) -> None:
        """Works on a note, unless somebody here does, or the caller may not write."""
        key = (ctx.tenant, item.id)
        if (
            status_of(item) is not Status.IN_PROGRESS
            or key in self._tasks
            or not ctx.principal.may(Role.WRITER)
        ):
            return
        run = self._run(replace(ctx.lasting(_RUN_S), traceparent=""), item)
        task = self._tasks[key] = asyncio.get_running_loop().create_task(run)
        task.add_done_callback(partial(self._forget, key))

    async def give_up(self, ctx: RequestContext, item: Item) -> None:
        """No document is made of it any more, unless it is one already."""
        if status_of(item) is Status.IN_PROGRESS:
            await self._end(ctx, item, Status.CANCELLED)
        task = self._tasks.pop((ctx.tenant, item.id), None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _forget(self, key: Key, done: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is done:
            del self._tasks[key]

    async def close(self) -> None:
        """Stops; what is under way is taken up again later."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def settled(self) -> None:
        """Waits until nothing is under way here."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def _run(self, ctx: RequestContext, item: Item) -> None:
        for pause_s in (*_PAUSES_S, None):
            try:
                async with self._turns.turn(ctx.tenant, weight=self._entrance.weight(ctx.principal)):
                    await self._ingest(ctx, item.id)
                return
            except Exception as error:
                if not (isinstance(error, KvquiltError) and error.retryable):
                    await self._failed(ctx, item, error)
                    return
                if pause_s is None:
                    log.warning("%s is left until somebody asks for it: %s", item.id, error.detail)
                    return
                log.info("%s is tried again in %g s: %s", item.id, pause_s, error.detail)
            await self._pause(pause_s)

    async def _ingest(self, ctx: RequestContext, note_id: str) -> None:
        """
        Raises:
            KvquiltError: why there is no document; a retryable one: it may be one later.
        """
        done: Mapping[str, str] | None = None
        while (item := await self._noted(ctx, note_id)) is not None and item.fields != done:
            await self._ingest_file(ctx, item)
            done = item.fields  # unless it was attached anew meanwhile, with other attributes
        if item is not None:
            await self._drop(ctx, item)

    async def _noted(self, ctx: RequestContext, note_id: str) -> Item | None:
        """None: it was detached or cancelled, or is a document by now."""
        try:
            item, _ = await self._items.get_item(ctx, ATTACHMENT, note_id)
        except NotFound:
            return None
        return item if status_of(item) is Status.IN_PROGRESS else None

    async def _ingest_file(self, ctx: RequestContext, item: Item) -> None:
        collection, _, file_id = item.id.partition("/")
        try:
            file, _ = await self._items.get_item(ctx, FILE, file_id)
            with self._entrance.entered(ctx.principal, file.size_bytes, counted=False):
                _, content = await self._items.get_item(ctx, FILE, file_id, with_content=True)
                await self._upsert(ctx, collection, source_of(item, content))
        except NotFound as error:
            raise UnreadableDocument(f"the file is not there any more: {error.detail}") from None

    async def _drop(self, ctx: RequestContext, item: Item) -> None:
        try:
            await self._items.delete_item(ctx, item.kind, item.id)
        except NotFound:
            return

    async def _upsert(self, ctx: RequestContext, collection: str, source: SourceDocument) -> None:
        ended: UpsertProgress | None = None
        async with aclosing(self._ingestion.upsert(ctx, collection, [source])) as progress:
            async for event in progress:
                ended = event
        if ended is None or ended.stage not in (Stage.STORED, Stage.UNCHANGED):
            code, why = (ended.error_code, ended.error) if ended else ("", "ingestion ended early")
            if ended is None or code in _RETRYABLE:
                raise Unavailable(why)
            raise _NotIngestedError(code, why)

    async def _failed(self, ctx: RequestContext, item: Item, error: Exception) -> None:
        if isinstance(error, (_NotIngestedError, KvquiltError)):
            code, why = error.code, error.detail
        else:
            log.error("%s could not be ingested", item.id, exc_info=error)
            code, why = errors.InternalError.code, "failed unexpectedly; the service's log has the reason"
        try:
            await self._end(ctx, item, Status.FAILED, {"code": code, "why": why})
        except KvquiltError as unnoted:
            log.warning("that %s failed is not noted: %s", item.id, unnoted.detail)

    async def _end(
        self, ctx: RequestContext, item: Item, status: Status, told: Mapping[str, str] | None = None
    ) -> None:
        """Unless the note is gone."""
        ended = replace(item, fields={**item.fields, "status": status.value, **(told or {})})
        try:
            await self._items.put_item(ctx, ended, expected=Expected.THERE)
        except NotFound:
            return


class _NotIngestedError(Exception):
    """As ingestion told it."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


def status_of(item: Item) -> Status:
    return Status(item.fields["status"])


def source_of(item: Item, content: bytes) -> SourceDocument:
    """The document that a note's file becomes."""
    metadata = json.loads(item.fields["metadata"])
    return SourceDocument(item.fields["document"], content, metadata=metadata, readers=item.readers)
