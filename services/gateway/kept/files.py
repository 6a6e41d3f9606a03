"""Files that callers hand over: kept durably for their tenant, until they delete them."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from services.gateway.kept.paging import ListedPage, PageAsked
from shared.errors import InvalidRequest, NotFound
from shared.kv_items import Expected, Item
from shared.kv_stores import ItemStore
from shared.readers import EVERYBODY, Readers, checked_readers
from shared.request import RequestContext

KIND = "file"
PURPOSES = ("assistants", "user_data")
FILE_ID = re.compile(r"file-[0-9a-f]{24}")
_MAX_NAME_CHARS = 255
_RETRIED_WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class KeptFile:
    """``created_s``: since 1970. ``readers``: see ``shared.readers``; its documents have the same."""

    id: str
    name: str
    purpose: str
    size_bytes: int
    created_s: float
    readers: Readers = EVERYBODY


@dataclass(frozen=True, slots=True)
class Upload:
    name: str
    purpose: str
    content: bytes
    readers: Readers = EVERYBODY


class Files:
    """``clock``: seconds since 1970. Ids follow the time, so files are listed by age."""

    def __init__(self, items: ItemStore, clock: Callable[[], float] = time.time) -> None:
        self._items, self._clock = items, clock

    async def keep(self, ctx: RequestContext, upload: Upload, retried: bool = False) -> KeptFile:
        """Durable when it returns. ``retried``: the caller may have sent it before, and not heard of it.

        Raises:
            InvalidRequest: names what is wrong with it.
            StorageFull: the caller, or its tenant, would have more than it may.
        """
        name = checked_name(upload.name)
        check_purpose(upload.purpose)
        readers = checked_readers("readers", upload.readers)
        if not upload.content:
            raise InvalidRequest("file: is empty")
        if retried and (known := await self._known(ctx, upload, name)) is not None:
            return known
        item = Item(KIND, self._new_id(), {"name": name, "purpose": upload.purpose}, readers)
        return file_of(await self._items.put_item(ctx, item, upload.content, Expected.NEW))

    async def get(self, ctx: RequestContext, file_id: str) -> KeptFile:
        """
        Raises:
            NotFound: there is none that the caller may read.
        """
        return file_of((await self._items.get_item(ctx, KIND, checked_id(file_id)))[0])

    async def content(self, ctx: RequestContext, file_id: str) -> tuple[KeptFile, bytes]:
        """Raises like ``get``."""
        item, content = await self._items.get_item(ctx, KIND, checked_id(file_id), with_content=True)
        return file_of(item), content

    async def page(self, ctx: RequestContext, asked: PageAsked, purpose: str = "") -> ListedPage[KeptFile]:
        """``purpose`` empty: of any."""
        if purpose:
            check_purpose(purpose)
        after = asked.after and checked_id(asked.after)
        found: list[KeptFile] = []
        while True:
            page = await self._items.item_page(
                ctx, KIND, start_after=after, limit=asked.limit + 1, descending=asked.descending
            )
            found += [file for file in map(file_of, page.items) if purpose in ("", file.purpose)]
            if len(found) > asked.limit or not page.truncated:
                return ListedPage(tuple(found[: asked.limit]), len(found) > asked.limit)
            after = page.items[-1].id

    async def delete(self, ctx: RequestContext, file_id: str) -> None:
        """Its bytes; documents that were made of it stay. Raises like ``get``."""
        await self._items.delete_item(ctx, KIND, checked_id(file_id))

    async def _known(self, ctx: RequestContext, upload: Upload, name: str) -> KeptFile | None:
        """One that the caller sent just now, and that says the same."""
        digest = await asyncio.to_thread(lambda: hashlib.sha256(upload.content).hexdigest())
        fields = {"name": name, "purpose": upload.purpose}
        page = await self._items.item_page(ctx, KIND, limit=100, descending=True)
        for item in page.items:
            same = (item.digest, item.fields, item.readers) == (digest, fields, upload.readers)
            since_s = self._clock() - item.created_s
            if same and item.stored_by == ctx.principal.name and since_s < _RETRIED_WITHIN_S:
                return file_of(item)
        return None

    def _new_id(self) -> str:
        return f"file-{int(1000 * self._clock()):012x}{secrets.token_hex(6)}"


def file_of(item: Item) -> KeptFile:
    fields = item.fields
    of = (item.id, fields["name"], fields["purpose"], item.size_bytes)
    return KeptFile(*of, created_s=item.created_s, readers=item.readers)


def checked_id(file_id: str) -> str:
    """
    Raises:
        NotFound: no file has such an id.
    """
    if not FILE_ID.fullmatch(file_id):
        raise NotFound(f"file {file_id[:80]!r}: there is none")
    return file_id


def checked_name(name: str) -> str:
    """Without folders that a client may have put in front.

    Raises:
        InvalidRequest: it is none.
    """
    last = re.split(r"[/\\]", name)[-1]
    if not 1 <= len(last) <= _MAX_NAME_CHARS or not last.isprintable() or not last.strip("."):
        raise InvalidRequest(
            f"file: {last[:80]!r} is no file name of 1 to {_MAX_NAME_CHARS} printable characters; its ending "
            "says what kind it is"
        )
    return last


def check_purpose(purpose: str) -> None:
    """
    Raises:
        InvalidRequest: files are not kept for it.
    """
    if purpose not in PURPOSES:
        raise InvalidRequest(f"purpose: {purpose[:80]!r} is not supported; {' and '.join(PURPOSES)} are")
