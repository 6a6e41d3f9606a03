"""Vector stores: collections, with the names and metadata that somebody gave them."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from services.gateway.kept.attaching import ATTACHMENT, Attaching, Status
from services.gateway.kept.paging import ListedPage, PageAsked, all_items, page_of
from shared.documents import DeletedDocuments
from shared.errors import DocumentTaken, InvalidRequest, NotFound
from shared.kv_items import Expected, Item
from shared.kv_stores import ItemStore
from shared.kv_types import AlikeDocuments
from shared.principals.names import PLAIN
from shared.request import RequestContext

KIND, BATCH = "vector_store", "batch"
MAX_METADATA, MAX_KEY_CHARS, MAX_VALUE_CHARS = 16, 64, 512
_MAX_NAME_CHARS = 256


class Counting(Protocol):
    async def count_documents(self, ctx: RequestContext) -> list[AlikeDocuments]: ...


class Deleting(Protocol):
    async def delete(
        self,
        ctx: RequestContext,
        collection: str,
        document_ids: tuple[str, ...] = (),
        everything: bool = False,
    ) -> DeletedDocuments: ...


@dataclass(frozen=True, slots=True)
class NewStore:
    name: str = ""
    description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoreChange:
    """None: as it is."""

    name: str | None = None
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class VectorStore:
    """``id``: of the collection. ``created_s``: since 1970; 0: it was made otherwise. ``counts``: of its
    files, by what became of them."""

    id: str
    name: str
    description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    created_s: float = 0.0
    counts: Mapping[Status, int] = field(default_factory=dict)


class VectorStores:
    def __init__(
        self, items: ItemStore, documents: Counting, ingestion: Deleting, attaching: Attaching
    ) -> None:
        self._items, self._documents, self._ingestion = items, documents, ingestion
        self._attaching = attaching

    async def create(self, ctx: RequestContext, asked: NewStore, retried: bool = False) -> VectorStore:
        """A name that can be a collection's is its id; otherwise one is made. ``retried``: the caller may
        have sent it before, and not heard of it.

        Raises:
            InvalidRequest: names what is wrong. DocumentTaken: there is a collection of this name.
        """
        _check(asked)
        store_id = asked.name if PLAIN.fullmatch(asked.name) else f"vs_{secrets.token_hex(12)}"
        fields = _fields_of(asked)
        known = await self._named(ctx, store_id)
        if known is not None and retried and known.fields == fields:
            return _told(store_id, known, {})
        if known is not None or store_id in await self._num_documents(ctx):
            raise DocumentTaken(
                f"name: there is a collection {store_id!r}; retrieve it, or choose another name"
            )
        item = await self._items.put_item(ctx, Item(KIND, store_id, fields), expected=Expected.NEW)
        return _told(store_id, item, {})

    async def get(self, ctx: RequestContext, store_id: str) -> VectorStore:
        """
        Raises:
            NotFound: there is none.
        """
        check_id(store_id)
        named, num = await self._named(ctx, store_id), (await self._num_documents(ctx))[store_id]
        attached = await all_items(self._items, ctx, ATTACHMENT, f"{store_id}/")
        if named is None and not num and not attached:
            raise absent(store_id)
        return _told(store_id, named, {**_counted(attached), Status.COMPLETED: num})

    async def change(self, ctx: RequestContext, store_id: str, change: StoreChange) -> VectorStore:
        """Its id stays. Raises like ``get``; InvalidRequest: names what is wrong."""
        old = await self.get(ctx, store_id)
        name = old.name if change.name is None else change.name
        new = NewStore(name, old.description, old.metadata if change.metadata is None else change.metadata)
        _check(new)
        item = await self._items.put_item(ctx, Item(KIND, store_id, _fields_of(new)))
        return _told(store_id, item, old.counts)

    async def page(self, ctx: RequestContext, asked: PageAsked) -> ListedPage[VectorStore]:
        """By age; those that were made otherwise are the oldest."""
        named = {item.id: item for item in await all_items(self._items, ctx, KIND)}
        num = await self._num_documents(ctx)
        attached: dict[str, list[Item]] = {}
        for item in await all_items(self._items, ctx, ATTACHMENT):
            attached.setdefault(item.id.partition("/")[0], []).append(item)
        stores = [
            _told(one, named.get(one), {**_counted(attached.get(one, [])), Status.COMPLETED: num[one]})
            for one in {*named, *num, *attached}
        ]
        stores.sort(key=lambda store: (store.created_s, store.id), reverse=asked.descending)
        return page_of(((store.id, store) for store in stores), asked)

    async def delete(self, ctx: RequestContext, store_id: str) -> None:
        """With all its documents; files stay. Raises like ``get``."""
        await self.get(ctx, store_id)
        for item in await all_items(self._items, ctx, ATTACHMENT, f"{store_id}/"):
            await self._attaching.give_up(ctx, item)
        if (await self._num_documents(ctx))[store_id]:
            await self._ingestion.delete(ctx, store_id, everything=True)
        for item in await all_items(self._items, ctx, ATTACHMENT, f"{store_id}/"):
            await self._drop(ctx, item)
        for item in await all_items(self._items, ctx, BATCH, f"{store_id}/"):
            await self._drop(ctx, item)
        await self._drop(ctx, Item(KIND, store_id))

    async def check_there(self, ctx: RequestContext, store_id: str) -> None:
        """Raises like ``get``."""
        check_id(store_id)
        if await self._named(ctx, store_id) is None and not (await self._num_documents(ctx))[store_id]:
            raise absent(store_id)

    async def _drop(self, ctx: RequestContext, item: Item) -> None:
        try:
            await self._items.delete_item(ctx, item.kind, item.id)
        except NotFound:  # it was never named, or is gone meanwhile
            return

    async def _named(self, ctx: RequestContext, store_id: str) -> Item | None:
        try:
            return (await self._items.get_item(ctx, KIND, store_id))[0]
        except NotFound:
            return None

    async def _num_documents(self, ctx: RequestContext) -> Counter[str]:
        counted: Counter[str] = Counter()
        for alike in await self._documents.count_documents(ctx):
            counted[alike.collection] += alike.num_documents
        return counted


def check_id(store_id: str) -> None:
    """
    Raises:
        NotFound: no collection has such a name.
    """
    if not PLAIN.fullmatch(store_id):
        raise absent(store_id)


def absent(store_id: str) -> NotFound:
    return NotFound(f"vector store {store_id[:80]!r}: there is none")


def _fields_of(store: NewStore) -> dict[str, str]:
    return {
        "name": store.name,
        "description": store.description,
        "metadata": json.dumps(dict(store.metadata), sort_keys=True),
    }


def _counted(attached: list[Item]) -> dict[Status, int]:
    return Counter(Status(item.fields["status"]) for item in attached)


def _told(store_id: str, item: Item | None, counts: Mapping[Status, int]) -> VectorStore:
    if item is None:
        return VectorStore(store_id, store_id, counts=counts)
    fields = item.fields
    metadata = json.loads(fields["metadata"])
    return VectorStore(store_id, fields["name"], fields["description"], metadata, item.created_s, counts)


def _check(asked: NewStore) -> None:
    if len(asked.name) > _MAX_NAME_CHARS:
        raise InvalidRequest(f"name: has more than {_MAX_NAME_CHARS} characters")
    if len(asked.description) > MAX_VALUE_CHARS:
        raise InvalidRequest(f"description: has more than {MAX_VALUE_CHARS} characters")
    if len(asked.metadata) > MAX_METADATA:
        raise InvalidRequest(f"metadata: has more than {MAX_METADATA} keys")
    for key, value in asked.metadata.items():
        if not 1 <= len(key) <= MAX_KEY_CHARS or len(value) > MAX_VALUE_CHARS:
            raise InvalidRequest(
                f"metadata: keys have 1 to {MAX_KEY_CHARS} characters and values up to {MAX_VALUE_CHARS}; "
                f"{key[:80]!r} or its value does not"
            )
