"""Items of the cluster (``shared.kv_items``), which the home node keeps."""

from __future__ import annotations

import asyncio
import logging

from services.kv_store.blobs.protocol import Blobs
from services.kv_store.documents.items import Items
from services.kv_store.fetching.nodes import Neighbours
from services.kv_store.upkeep.upkeep import Upkeep
from shared.errors import InvalidRequest
from shared.kv_items import Expected, Item, ItemPage
from shared.locks import Locks
from shared.readers import checked_readers
from shared.request import RequestContext

log = logging.getLogger(__name__)


class HomeItems:
    """``local``: the node's own disk, where items are that were kept before there was an object store; None:
    that is where they are kept."""

    def __init__(self, items: Items, neighbours: Neighbours, upkeep: Upkeep, local: Blobs | None) -> None:
        self._items, self._neighbours, self._upkeep, self._local = items, neighbours, upkeep, local
        self._locks = Locks()

    async def recover(self, stale_s: float) -> None:
        """Goes on with what was left undone."""
        if not self._neighbours.is_home:
            return
        if self._local is not None and (num := await asyncio.to_thread(self._items.take_over, self._local)):
            log.info("%d blobs of items are in the object store now", num)
        if num := await asyncio.to_thread(self._items.tidy, stale_s):
            log.warning("%d contents of items that were never there are removed", num)

    async def put_item(
        self, ctx: RequestContext, item: Item, content: bytes = b"", expected: Expected = Expected.EITHER
    ) -> Item:
        self._neighbours.check_home()
        checked_readers("item.readers", item.readers)
        if content and expected is Expected.THERE:
            raise InvalidRequest("content: of an item that is there it does not change; delete it first")
        async with self._locks.hold(ctx.tenant):  # so that what others put meanwhile counts
            size = len(content) + sum(len(text.encode()) for pair in item.fields.items() for text in pair)
            restored_of = item.stored_by if expected is Expected.RESTORED else ""
            await self._upkeep.check_item(ctx, size, restored_of or ctx.principal.name)
            return await asyncio.to_thread(self._items.put, ctx.principal, item, content, expected)

    async def get_item(
        self, ctx: RequestContext, kind: str, item_id: str, with_content: bool = False
    ) -> tuple[Item, bytes]:
        self._neighbours.check_home()
        if with_content:
            return await asyncio.to_thread(self._items.content, ctx.principal, kind, item_id)
        return await asyncio.to_thread(self._items.get, ctx.principal, kind, item_id), b""

    async def item_page(
        self,
        ctx: RequestContext,
        kind: str,
        prefix: str = "",
        start_after: str = "",
        limit: int = 0,
        descending: bool = False,
    ) -> ItemPage:
        self._neighbours.check_home()
        of = (ctx.principal, kind, prefix, start_after, limit, descending)
        return await asyncio.to_thread(self._items.page, *of)

    async def delete_item(self, ctx: RequestContext, kind: str, item_id: str) -> None:
        self._neighbours.check_home()
        async with self._locks.hold(ctx.tenant):
            await asyncio.to_thread(self._items.remove, ctx.principal, kind, item_id)
