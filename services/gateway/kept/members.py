"""Files of a vector store: its documents, and what is on its way to become one.

A document that a file became has the id ``FILE/NAME``; every other document of the collection is shown as a
file, too, with an id that is made of its own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from services.gateway.kept.attaching import ATTACHMENT, Attaching, Status, status_of
from services.gateway.kept.attributes import Attribute, Attributes, attributes_of, metadata_of
from services.gateway.kept.files import FILE_ID, checked_id
from services.gateway.kept.files import KIND as FILE
from services.gateway.kept.paging import ListedPage, PageAsked, all_items
from services.gateway.kept.stores import Deleting, VectorStores
from shared.errors import NotFound
from shared.kv_items import Item
from shared.kv_stores import ItemStore
from shared.kv_types import Manifest, ManifestPage
from shared.request import RequestContext

_MADE = "doc-"
_BEHIND = "0"
"""Comes right after ``/``: behind all ids that begin with a file's and that."""
_NEXT = "\x01"
"""An id with it behind comes right after that id, since no text holds NUL."""


class MemberDocuments(Protocol):
    async def manifest_page(
        self,
        ctx: RequestContext,
        collection: str = "",
        start_after: str = "",
        limit: int = 0,
        summary: bool = False,
        descending: bool = False,
    ) -> ManifestPage: ...


@dataclass(frozen=True, slots=True)
class Member:
    """``document_id``: that it has or will have. ``num_chars``: of its text; 0: it is not known yet.
    ``code``, ``why``: of one that failed."""

    file_id: str
    store_id: str
    document_id: str
    status: Status
    created_s: float
    num_chars: int
    attributes: Mapping[str, Attribute]
    code: str = ""
    why: str = ""


class Members:
    """``limit`` of a page is bounded by whoever asks."""

    def __init__(
        self,
        items: ItemStore,
        documents: MemberDocuments,
        ingestion: Deleting,
        stores: VectorStores,
        attaching: Attaching,
    ) -> None:
        self._items, self._documents, self._ingestion = items, documents, ingestion
        self._stores, self._attaching = stores, attaching

    async def attach(
        self, ctx: RequestContext, store_id: str, file_id: str, attributes: Attributes | None = None
    ) -> Member:
        """Noted durably when it returns. A file that is there is compared, and ingested anew if its
        attributes changed.

        Raises:
            NotFound: there is no such store or file. InvalidRequest: names an attribute that cannot be.
        """
        metadata = metadata_of(attributes or {})
        await self._stores.check_there(ctx, store_id)
        file, _ = await self._items.get_item(ctx, FILE, checked_id(file_id))
        return _noted(await self._attaching.note(ctx, store_id, file, metadata))

    async def get(self, ctx: RequestContext, store_id: str, file_id: str) -> Member:
        """
        Raises:
            NotFound: it is not in this store.
        """
        await self._stores.check_there(ctx, store_id)
        if (item := await self._note(ctx, store_id, file_id)) is not None:
            self._attaching.go_on(ctx, item)
            return _noted(item)
        manifest = await self._document(ctx, store_id, file_id)
        if manifest is None:
            raise _absent(store_id, file_id)
        return _stored(manifest)

    async def page(
        self, ctx: RequestContext, store_id: str, asked: PageAsked, status: Status | None = None
    ) -> ListedPage[Member]:
        """By the ids of documents, which those of files begin: by their age. ``status`` None: all.

        Raises:
            NotFound: there is no such store.
        """
        await self._stores.check_there(ctx, store_id)
        notes = await all_items(self._items, ctx, ATTACHMENT, f"{store_id}/")
        for item in notes:
            self._attaching.go_on(ctx, item)
        known = {item.fields["document"] for item in notes}
        cursor = _cursor(asked)
        found = [_noted(item) for item in notes if status in (None, status_of(item))]
        found = [one for one in found if _is_behind(one.document_id, cursor, asked.descending)]
        if status in (None, Status.COMPLETED):
            found += await self._stored(ctx, store_id, asked, cursor, known)
        found.sort(key=lambda one: one.document_id, reverse=asked.descending)
        return ListedPage(tuple(found[: asked.limit]), len(found) > asked.limit)

    async def detach(self, ctx: RequestContext, store_id: str, file_id: str) -> None:
        """Its document is deleted; the file stays. Raises like ``get``."""
        await self._stores.check_there(ctx, store_id)
        item = await self._note(ctx, store_id, file_id)
        if item is not None:
            await self._attaching.give_up(ctx, item)
        manifest = await self._document(ctx, store_id, file_id)
        if item is None and manifest is None:
            raise _absent(store_id, file_id)
        if manifest is not None:
            await self._ingestion.delete(ctx, store_id, (manifest.document_id,))
        if item is not None:
            await self._forget(ctx, item)

    async def _forget(self, ctx: RequestContext, item: Item) -> None:
        try:
            await self._items.delete_item(ctx, item.kind, item.id)
        except NotFound:
            return

    async def _note(self, ctx: RequestContext, store_id: str, file_id: str) -> Item | None:
        if not FILE_ID.fullmatch(file_id):
            return None
        try:
            return (await self._items.get_item(ctx, ATTACHMENT, f"{store_id}/{file_id}"))[0]
        except NotFound:
            return None

    async def _document(self, ctx: RequestContext, store_id: str, file_id: str) -> Manifest | None:
        if FILE_ID.fullmatch(file_id):
            page = await self._documents.manifest_page(ctx, store_id, f"{file_id}/", 1, summary=True)
            found = [one for one in page.manifests if one.document_id.startswith(f"{file_id}/")]
        else:
            document_id = _document_of(file_id)
            if not document_id:
                return None
            behind = document_id + _NEXT
            page = await self._documents.manifest_page(ctx, store_id, behind, 1, True, descending=True)
            found = [one for one in page.manifests if one.document_id == document_id]
        return found[0] if found else None

    async def _stored(
        self, ctx: RequestContext, store_id: str, asked: PageAsked, cursor: str, known: set[str]
    ) -> list[Member]:
        """One more than a page holds, if there are so many, without those that are noted."""
        found: list[Member] = []
        while True:
            page = await self._documents.manifest_page(
                ctx, store_id, cursor, asked.limit + 1, summary=True, descending=asked.descending
            )
            found += [_stored(one) for one in page.manifests if one.document_id not in known]
            if len(found) > asked.limit or not page.truncated:
                return found
            cursor = page.manifests[-1].document_id


def file_id_of(document_id: str) -> str:
    """By which a document of a collection is named as a file."""
    head, slash, _ = document_id.partition("/")
    if slash and FILE_ID.fullmatch(head):
        return head
    return _MADE + base64.urlsafe_b64encode(document_id.encode()).decode("ascii").rstrip("=")


def filename_of(document_id: str) -> str:
    head, slash, name = document_id.partition("/")
    return name if slash and FILE_ID.fullmatch(head) else document_id


def _document_of(file_id: str) -> str:
    """Inverse of ``file_id_of``, where that made one; empty: it did not."""
    digits = file_id.removeprefix(_MADE)
    try:
        document_id = base64.urlsafe_b64decode(digits + "=" * (-len(digits) % 4)).decode()
    except ValueError:
        return ""
    return document_id if file_id_of(document_id) == file_id else ""


def _cursor(asked: PageAsked) -> str:
    """Returns the id that a page begins behind, among ids of documents.

    Raises:
        NotFound: ``after`` names no file.
    """
    if not asked.after:
        return ""
    if FILE_ID.fullmatch(asked.after):
        return asked.after + ("/" if asked.descending else _BEHIND)
    if not (document_id := _document_of(asked.after)):
        raise NotFound(f"file {asked.after[:80]!r}: there is none")
    return document_id


def _is_behind(document_id: str, cursor: str, descending: bool) -> bool:
    return not cursor or (document_id < cursor if descending else document_id > cursor)


def _noted(item: Item) -> Member:
    store_id, _, file_id = item.id.partition("/")
    fields = item.fields
    attributes = attributes_of(json.loads(fields["metadata"]))
    of = (file_id, store_id, fields["document"], status_of(item), item.created_s, 0, attributes)
    return Member(*of, fields.get("code", ""), fields.get("why", ""))


def _stored(manifest: Manifest) -> Member:
    return Member(
        file_id_of(manifest.document_id),
        manifest.collection,
        manifest.document_id,
        Status.COMPLETED,
        manifest.created_s,
        max((chunk.char_end for chunk in manifest.chunks), default=0),
        attributes_of(manifest.metadata),
    )


def _absent(store_id: str, file_id: str) -> NotFound:
    return NotFound(f"file {file_id[:80]!r}: is not in vector store {store_id[:80]!r}")
