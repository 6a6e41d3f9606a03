"""Items of an archive (``shared.kv_items``): uploaded files, vector stores, responses; which of them belong to a
collection, and what happens where they are brought.

An item is one member of the archive, content and all::

    items/<kind>/<id>.item      a line with the checksum of the next one; a line of JSON, what there is to say of it, with the
                                SHA-256 of its content; the content
"""  # noqa: E501

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Protocol

from services.gateway.kept.attaching import ATTACHMENT
from services.gateway.kept.files import FILE_ID
from services.gateway.kept.files import KIND as FILE
from services.gateway.kept.stores import BATCH
from services.gateway.kept.stores import KIND as VECTOR_STORE
from services.kv_store.documents.sealed_json import checksum_of
from shared.errors import Conflict, CorruptData, FailedPrecondition, InvalidRequest, NotFound
from shared.kv_items import Expected, Item, ItemPage, check_item_name
from shared.request import RequestContext

_WAY_OUT = "or leave all items behind with --no-items"


class MovedItems(Protocol):
    """The part of a store that items are moved by."""

    async def put_item(
        self, ctx: RequestContext, item: Item, content: bytes = b"", expected: Expected = Expected.EITHER
    ) -> Item: ...
    async def get_item(
        self, ctx: RequestContext, kind: str, item_id: str, with_content: bool = False
    ) -> tuple[Item, bytes]: ...
    async def item_page(
        self,
        ctx: RequestContext,
        kind: str,
        prefix: str = "",
        start_after: str = "",
        limit: int = 0,
        descending: bool = False,
    ) -> ItemPage: ...
    async def delete_item(self, ctx: RequestContext, kind: str, item_id: str) -> None: ...


def encode_item(item: Item, content: bytes = b"") -> bytes:
    """``content`` empty, though the item has some: what there is to say of it alone."""
    told = json.dumps(asdict(item), ensure_ascii=False, separators=(",", ":")).encode()
    return b"\n".join((checksum_of(told), told, content))


def decode_item(data: bytes, name: str) -> tuple[Item, bytes]:
    """``name``: that of the item, as the archive has it.

    Raises:
        CorruptData: it is damaged; names it.
    """
    checksum, _, rest = data.partition(b"\n")
    told, _, content = rest.partition(b"\n")
    try:
        if checksum != checksum_of(told):
            raise ValueError("it fails its checksum")
        fields = json.loads(told)
        item = Item(**{**fields, "readers": tuple(fields["readers"])})
        check_item_name(item.kind, item.id)
        if item.name != name:
            raise ValueError("it is another one")
        if (hashlib.sha256(content).hexdigest() if content else "") != item.digest:
            raise ValueError("its content fails its checksum")
    except (ValueError, KeyError, TypeError, InvalidRequest) as error:
        raise CorruptData(
            f"item {name[:80]!r} of the archive is damaged ({error}); copy it or export again"
        ) from None
    return item, content


async def items_to_move(
    store: MovedItems, ctx: RequestContext, collection: str, document_ids: Iterable[str]
) -> AsyncGenerator[Item, None]:
    """Those of a collection, or all of the tenant's (``collection`` empty): the vector store that it is, what
    is on its way into it, and the files that its documents, and those to be, are made of.

    Raises:
        FailedPrecondition: one of them cannot be read; names it.
    """
    if not collection:
        async for item in _listed(store, ctx):
            yield item
        return
    file_ids = {document_id.partition("/")[0] for document_id in document_ids}
    kept = [
        item for kind in (ATTACHMENT, BATCH) async for item in _listed(store, ctx, kind, f"{collection}/")
    ]
    for item in kept:
        own = [item.id.partition("/")[2]] if item.kind == ATTACHMENT else json.loads(item.fields["file_ids"])
        file_ids.update(own)
    wanted = [
        (VECTOR_STORE, collection),
        *((FILE, one) for one in sorted(file_ids) if FILE_ID.fullmatch(one)),
    ]
    for kind, item_id in wanted:
        with suppress(NotFound):  # a collection without a name of its own; a file that was deleted since
            yield await _read(store, ctx, Item(kind, item_id))
    for item in kept:
        yield item


async def content_of(store: MovedItems, ctx: RequestContext, item: Item) -> bytes:
    """
    Raises:
        FailedPrecondition: it cannot be read, or is another one than it was; says what to do.
    """
    changed = FailedPrecondition(f"{item.name} was changed or deleted meanwhile; give the same command again")
    try:
        now, content = await store.get_item(ctx, item.kind, item.id, with_content=True)
    except NotFound:
        raise changed from None
    except CorruptData as error:
        raise _unreadable(item.name, error.detail) from None
    if now != item:
        raise changed
    return content


def renamed(item: Item, old: str, new: str) -> Item:
    """Of collection ``old`` as that of ``new``."""
    if item.kind == VECTOR_STORE and item.id == old:
        fields = {**item.fields, "name": new} if item.fields.get("name") == old else item.fields
        return replace(item, id=new, fields=fields)
    if item.kind in (ATTACHMENT, BATCH) and item.id.startswith(f"{old}/"):
        return replace(item, id=f"{new}/{item.id.partition('/')[2]}")
    return item


async def must_be_put(store: MovedItems, ctx: RequestContext, item: Item, replaces: bool) -> bool:
    """Whether it is not there yet; one that is the same is. When, and by whom, it was stored makes no
    difference. ``replaces``: another one of its name goes.

    Raises:
        Conflict: there is another one of its name; names it.
    """
    try:
        there: Item | None = (await store.get_item(ctx, item.kind, item.id))[0]
    except NotFound:
        return True
    except CorruptData:
        there = None
    if there is not None and _same(there, item):
        return False
    if not replaces:
        raise Conflict(
            f"{item.name}: there is another one of this name; give --replace-items to have it replaced, "
            f"delete it, {_WAY_OUT}"
        )
    return True


async def put(store: MovedItems, ctx: RequestContext, item: Item, content: bytes, replaces: bool) -> bool:
    """Whether it was put: durable, as old as it is. Raises like ``must_be_put``.

    Raises:
        StorageFull: its tenant, or whose it is, would have more than it may.
    """
    if not await must_be_put(store, ctx, item, replaces):
        return False
    if replaces:
        with suppress(NotFound):
            await store.delete_item(ctx, item.kind, item.id)
    await store.put_item(ctx, item, content, Expected.RESTORED)
    return True


def _same(one: Item, other: Item) -> bool:
    return replace(one, created_s=0.0, stored_by="") == replace(other, created_s=0.0, stored_by="")


async def _read(store: MovedItems, ctx: RequestContext, item: Item) -> Item:
    try:
        return (await store.get_item(ctx, item.kind, item.id))[0]
    except CorruptData as error:
        raise _unreadable(item.name, error.detail) from None


async def _listed(
    store: MovedItems, ctx: RequestContext, kind: str = "", prefix: str = ""
) -> AsyncGenerator[Item, None]:
    """``kind`` empty: of all kinds."""
    start_after = ""
    while True:
        page = await store.item_page(ctx, kind, prefix, start_after, 1000)
        if page.unreadable:
            raise _unreadable(page.unreadable[0], "it is damaged, or a later version of kvquilt stored it")
        for item in page.items:
            yield item
        if not page.truncated:
            return
        start_after = page.items[-1].cursor(kind)


def _unreadable(name: str, why: str) -> FailedPrecondition:
    return FailedPrecondition(f"{name} cannot be exported: {why}; delete it, put it anew, {_WAY_OUT}")
