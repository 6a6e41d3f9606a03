"""Files that were attached together."""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.gateway.kept.attaching import ATTACHMENT, Attaching, Status, status_of
from services.gateway.kept.attributes import Attributes, metadata_of
from services.gateway.kept.files import KIND as FILE
from services.gateway.kept.files import checked_id
from services.gateway.kept.paging import all_items
from services.gateway.kept.stores import BATCH, VectorStores
from shared.errors import InvalidRequest, NotFound
from shared.kv_items import Expected, Item
from shared.kv_stores import ItemStore
from shared.request import RequestContext

MAX_FILES = 1000
_ID = re.compile(r"vsfb_[0-9a-f]{24}")
_CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class FileBatch:
    """``counts``: of its files, by what became of them; one that was detached since counts as completed."""

    id: str
    store_id: str
    created_s: float
    counts: Mapping[Status, int]
    cancelled: bool = False

    @property
    def status(self) -> Status:
        if self.counts.get(Status.IN_PROGRESS):
            return Status.IN_PROGRESS
        return Status.CANCELLED if self.cancelled else Status.COMPLETED


class Batches:
    def __init__(self, items: ItemStore, stores: VectorStores, attaching: Attaching) -> None:
        self._items, self._stores, self._attaching = items, stores, attaching

    async def create(
        self, ctx: RequestContext, store_id: str, files: Sequence[tuple[str, Attributes]]
    ) -> FileBatch:
        """Noted durably when it returns, with all its files.

        Raises:
            NotFound: there is no such store, or one of the files. InvalidRequest: names what is wrong.
        """
        if not 1 <= len(files) <= MAX_FILES:
            raise InvalidRequest(f"file_ids: must name 1 to {MAX_FILES} files, got {len(files)}")
        if len({file_id for file_id, _ in files}) < len(files):
            raise InvalidRequest("file_ids: names a file twice")
        await self._stores.check_there(ctx, store_id)
        found = [
            ((await self._items.get_item(ctx, FILE, checked_id(file_id)))[0], metadata_of(attributes))
            for file_id, attributes in files
        ]
        fields = {"file_ids": json.dumps([file_id for file_id, _ in files])}
        item = Item(BATCH, f"{store_id}/vsfb_{secrets.token_hex(12)}", fields)
        batch = await self._items.put_item(ctx, item, expected=Expected.NEW)
        for file, metadata in found:
            await self._attaching.note(ctx, store_id, file, metadata)
        return await self._told(ctx, batch)

    async def get(self, ctx: RequestContext, store_id: str, batch_id: str) -> FileBatch:
        """
        Raises:
            NotFound: there is none.
        """
        return await self._told(ctx, await self._item(ctx, store_id, batch_id))

    async def cancel(self, ctx: RequestContext, store_id: str, batch_id: str) -> FileBatch:
        """Of its files those that are no documents yet become none. Raises like ``get``."""
        item = await self._item(ctx, store_id, batch_id)
        item = await self._items.put_item(
            ctx, Item(BATCH, item.id, item.fields | {_CANCELLED: "true"}), expected=Expected.THERE
        )
        for note in await self._notes(ctx, item):
            await self._attaching.give_up(ctx, note)
        return await self._told(ctx, item)

    async def _item(self, ctx: RequestContext, store_id: str, batch_id: str) -> Item:
        await self._stores.check_there(ctx, store_id)
        absent = NotFound(f"batch {batch_id[:80]!r}: there is none in vector store {store_id!r}")
        if not _ID.fullmatch(batch_id):
            raise absent
        try:
            return (await self._items.get_item(ctx, BATCH, f"{store_id}/{batch_id}"))[0]
        except NotFound:
            raise absent from None

    async def _notes(self, ctx: RequestContext, item: Item) -> list[Item]:
        store_id = item.id.partition("/")[0]
        ids = {f"{store_id}/{file_id}" for file_id in json.loads(item.fields["file_ids"])}
        notes = await all_items(self._items, ctx, ATTACHMENT, f"{store_id}/")
        return [note for note in notes if note.id in ids]

    async def _told(self, ctx: RequestContext, item: Item) -> FileBatch:
        notes = await self._notes(ctx, item)
        for note in notes:
            self._attaching.go_on(ctx, note)
        counts = Counter(map(status_of, notes))
        counts[Status.COMPLETED] = len(json.loads(item.fields["file_ids"])) - len(notes)
        store_id, _, batch_id = item.id.partition("/")
        return FileBatch(batch_id, store_id, item.created_s, counts, _CANCELLED in item.fields)
