"""Items of all tenants (``shared.kv_items``), kept by the home node as blobs: in the object store or, without
one, on its disk.

    kept/<tenant>/<kind>/<id>.data     the content, if there is any; put first
    kept/<tenant>/<kind>/<id>.json     what there is to say of it, sealed (``sealed_json``); removed first

So an item is there when its second blob is. Content without one belongs to a put that broke off, and goes.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace

from services.kv_store.blobs.protocol import Blobs, BlobStat, list_all
from services.kv_store.documents.sealed_json import seal, unseal
from shared.errors import Conflict, CorruptData, KvquiltError, NewerFormat, NotFound
from shared.kv_format import SealKeys
from shared.kv_items import Expected, Item, ItemPage, check_item_name, check_kind
from shared.kv_reports import DamagedRecord
from shared.principals.principal import Principal
from shared.readers import NOBODY, may_read, reads_everything
from shared.request import check_name

log = logging.getLogger(__name__)

DEFAULT_PAGE, LARGEST_PAGE = 100, 1000
PAGE_BYTES = 1 << 20
_VERSION = 1
_MOST_KNOWN = 65_536
_ROOT, _TOLD, _CONTENT = "kept/", ".json", ".data"


class Items:
    """Thread-safe; every method blocks, and raises what ``Blobs`` raise. ``keys``: items are sealed with the
    current one, and believed if any of them sealed them. ``clock``: seconds since 1970."""

    def __init__(
        self, blobs: Blobs, keys: SealKeys | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._blobs, self._keys, self._clock = blobs, keys, clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[BlobStat, Item]] = {}  # by the blob's name
        self._being_put: Counter[str] = Counter()

    def put(self, who: Principal, item: Item, content: bytes, expected: Expected) -> Item:
        """As it is stored. One that is there keeps its content, its age and whose it is.

        Raises:
            Conflict: there is one, and it was to be new. NotFound: there is none, or none that ``who`` may
            read, and it was to be there. CorruptData: it is to be restored, with another content than it had.
        """
        new = expected in (Expected.NEW, Expected.RESTORED)
        name = _name(who.tenant, item.kind, item.id)
        old = self._find(name)
        if old is not None and not may_read(who, old.readers):
            raise Conflict(f"id: {item.id!r} is taken") if new else _absent(item)
        if old is None and expected is Expected.THERE:
            raise _absent(item)
        if old is not None and new:
            raise Conflict(f"id: {item.id!r} is there already")
        if expected is Expected.RESTORED:
            stored = _restored(who, item, content)
        else:
            stored = self._stored(who, item, content) if old is None else _following(old, item)
        with self._putting(name):
            if old is None and content:
                self._blobs.put(name + _CONTENT, content)
            self._blobs.put(name + _TOLD, seal({"version": _VERSION, "item": asdict(stored)}, self._keys))
        return stored

    def get(self, who: Principal, kind: str, item_id: str) -> Item:
        """
        Raises:
            NotFound: there is none that ``who`` may read. CorruptData: it is damaged.
        """
        item = self._find(_name(who.tenant, kind, item_id))
        if item is None or not may_read(who, item.readers):
            raise _absent(Item(kind, item_id))
        return item

    def content(self, who: Principal, kind: str, item_id: str) -> tuple[Item, bytes]:
        """Raises like ``get``."""
        item = self.get(who, kind, item_id)
        return item, self._content(_name(who.tenant, kind, item_id), item)

    def page(
        self, who: Principal, kind: str, prefix: str, start_after: str, limit: int, descending: bool
    ) -> ItemPage:
        """Those that ``who`` may read, by id; ``kind`` empty: of all kinds, by kind and id."""
        if kind:
            check_kind(kind)
        limit = min(limit or DEFAULT_PAGE, LARGEST_PAGE)
        found: list[Item] = []
        unreadable: list[str] = []
        num_bytes = 0
        for name in self._names_after(who.tenant, kind, prefix, start_after, descending):
            if len(found) == limit or num_bytes >= PAGE_BYTES:
                return ItemPage(tuple(found), True, tuple(unreadable))
            one_kind, _, item_id = name.partition("/")
            try:
                found.append(self.get(who, one_kind, item_id))
                num_bytes += sum(len(text.encode()) for pair in found[-1].fields.items() for text in pair)
            except NotFound:  # not for the caller, or removed meanwhile
                continue
            except (CorruptData, NewerFormat):
                unreadable += [name] if reads_everything(who) else []
        return ItemPage(tuple(found), False, tuple(unreadable))

    def remove(self, who: Principal, kind: str, item_id: str) -> None:
        """
        Raises:
            NotFound: there is none that ``who`` may read.
        """
        name = _name(who.tenant, kind, item_id)
        with suppress(CorruptData):  # nobody can tell whose it was; the tenant may remove it
            self.get(who, kind, item_id)
        self._blobs.delete(name + _TOLD)
        self._blobs.delete(name + _CONTENT)
        with self._lock:
            self._known.pop(name + _TOLD, None)

    def num_bytes(self, tenant: str, stored_by: str | None = None) -> int:
        """Of the tenant's items, those that cannot be read included; ``stored_by`` not None: of those that
        say that they are this principal's."""
        return sum(
            num_bytes
            for _, item, num_bytes in self._sized(f"{_ROOT}{check_name('tenant', tenant)}/")
            if stored_by is None or (item is not None and item.stored_by == stored_by)
        )

    def usage(self, who: Principal) -> dict[str, tuple[int, int]]:
        """By tenant, how many items ``who`` may read, and their bytes as ``num_bytes`` counts them; whoever
        reads everything is told of damaged ones, too. While the blobs cannot be reached: of the items last
        seen."""
        try:
            items = list(self._sized(_ROOT))
        except KvquiltError as error:
            log.warning("what front doors keep is told as it was last seen: %s", error.detail)
            with self._lock:
                known = list(self._known.values())
            items = [(_tenant(blob), item, blob.size_bytes + item.size_bytes) for blob, item in known]
        found: dict[str, tuple[int, int]] = {}
        for tenant, item, size_bytes in items:
            if may_read(who, NOBODY if item is None else item.readers):
                num, num_bytes = found.get(tenant, (0, 0))
                found[tenant] = num + 1, num_bytes + size_bytes
        return found

    def verify(self) -> list[DamagedRecord]:
        """Reads every item, and every byte of its content. Only putting it anew mends what is damaged."""
        damaged = []
        for blob in self._all():
            name = blob.name.removesuffix(_TOLD)
            try:
                with self._lock:
                    self._known.pop(blob.name, None)  # it is what is there now that counts
                item = self._read(blob)
                self._content(name, item)
            except NotFound:
                if self._blobs.stat(blob.name) is None:  # removed meanwhile
                    continue
                damaged.append(DamagedRecord(name.removeprefix(_ROOT), "its bytes are gone; upload it again"))
            except CorruptData as error:
                damaged.append(DamagedRecord(name.removeprefix(_ROOT), error.detail))
            except NewerFormat:
                continue  # its version verifies it
        return damaged

    def tidy(self, older_than_s: float) -> int:
        """Removes content that belongs to no item, of puts that broke off so long ago; returns how many. What
        is being put here now is none of these, whatever a clock that jumps says of its age."""
        with self._lock:
            being_put = set(self._being_put)
        blobs = {blob.name: blob for blob in list_all(self._blobs, _ROOT)}
        orphans = [
            blob
            for name, blob in blobs.items()
            if name.endswith(_CONTENT)
            and name.removesuffix(_CONTENT) + _TOLD not in blobs
            and blob.modified_s < self._clock() - older_than_s
            and name.removesuffix(_CONTENT) not in being_put
        ]
        for blob in orphans:
            self._blobs.delete(blob.name)
        return len(orphans)

    def take_over(self, others: Blobs) -> int:
        """Brings what ``others`` keep here and removes it there, as when an object store was configured
        since; returns how many blobs. What is here already counts."""
        names = sorted((blob.name for blob in list_all(others, _ROOT)), key=lambda n: n.endswith(_TOLD))
        for name in names:  # contents first
            if self._blobs.stat(name) is None:
                self._blobs.put(name, b"".join(others.read(name)))
        for name in reversed(names):
            others.delete(name)
        return len(names)

    @contextmanager
    def _putting(self, name: str) -> Iterator[None]:
        with self._lock:
            self._being_put[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._being_put -= Counter([name])

    def _all(self) -> Iterator[BlobStat]:
        """What there is to say of every tenant's."""
        return (blob for blob in list_all(self._blobs, _ROOT) if blob.name.endswith(_TOLD))

    def _content(self, name: str, item: Item) -> bytes:
        if not item.digest:
            return b""
        data = b"".join(self._blobs.read(name + _CONTENT))
        if hashlib.sha256(data).hexdigest() != item.digest:
            raise CorruptData(f"{item.kind} {item.id!r}: its bytes are damaged; upload it again")
        return data

    def _stored(self, who: Principal, item: Item, content: bytes) -> Item:
        digest = hashlib.sha256(content).hexdigest() if content else ""
        return replace(
            item, size_bytes=len(content), digest=digest, created_s=self._clock(), stored_by=who.name
        )

    def _names_after(
        self, tenant: str, kind: str, prefix: str, start_after: str, descending: bool
    ) -> Sequence[str]:
        """KIND/ID of those whose id (``kind`` empty: whose name) begins with ``prefix`` and is behind
        ``start_after``."""
        of_tenant = f"{_ROOT}{check_name('tenant', tenant)}/"
        of_kind = f"{kind}/" if kind else ""
        names = sorted(self._names(of_tenant, of_kind + prefix), reverse=descending)
        if not start_after:
            return names
        last = of_kind + start_after
        return [name for name in names if (name < last if descending else name > last)]

    def _names(self, folder: str, prefix: str) -> Iterator[str]:
        for blob in list_all(self._blobs, folder + prefix):
            if blob.name.endswith(_TOLD):
                yield blob.name.removeprefix(folder).removesuffix(_TOLD)

    def _find(self, name: str) -> Item | None:
        found = self._blobs.stat(name + _TOLD)
        if found is None:
            return None
        with suppress(NotFound):
            return self._read(found)
        return None

    def _sized(self, prefix: str) -> Iterator[tuple[str, Item | None, int]]:
        """Items whose blobs' names begin so: the tenant, what is told of it, the bytes of both blobs. None:
        that cannot be read; it takes the room that it takes, so its content counts as it lies there."""
        blobs = list(list_all(self._blobs, prefix))
        contents = {blob.name: blob.size_bytes for blob in blobs if blob.name.endswith(_CONTENT)}
        for blob in blobs:
            if blob.name.endswith(_TOLD):
                item: Item | None = None
                try:
                    item = self._read(blob)
                    content_bytes = item.size_bytes
                except (CorruptData, NewerFormat):
                    content_bytes = contents.get(blob.name.removesuffix(_TOLD) + _CONTENT, 0)
                except NotFound:  # removed meanwhile
                    continue
                yield _tenant(blob), item, blob.size_bytes + content_bytes

    def _read(self, blob: BlobStat) -> Item:
        """Reads an item, once where it does not change."""
        name = blob.name
        with self._lock:
            known = self._known.get(name)
        if known is not None and known[0].version == blob.version:
            return known[1]
        data = b"".join(self._blobs.read(name))
        try:
            fields = unseal(data, keys=self._keys)
            if fields["version"] > _VERSION:
                raise NewerFormat("this item was stored by a later version of kvquilt; update kvquilt here")
            told = fields["item"]
            item = Item(**{**told, "readers": tuple(told["readers"])})
        except (ValueError, KeyError, TypeError) as error:
            log.error("%s is damaged: %s", name, error)
            raise CorruptData("what is known of it is damaged; delete it, and put it anew") from None
        with self._lock:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[name] = (blob, item)
        return item


def _following(old: Item, new: Item) -> Item:
    return replace(
        new, size_bytes=old.size_bytes, digest=old.digest, created_s=old.created_s, stored_by=old.stored_by
    )


def _restored(who: Principal, item: Item, content: bytes) -> Item:
    """``stored_by`` empty: whoever had it is nobody here; it is ``who``'s."""
    if (len(content), hashlib.sha256(content).hexdigest() if content else "") != (
        item.size_bytes,
        item.digest,
    ):
        raise CorruptData(f"{item.kind} {item.id!r}: its content is not the one that it was kept with")
    return replace(item, stored_by=item.stored_by or who.name)


def _name(tenant: str, kind: str, item_id: str) -> str:
    """Without the ending.

    Raises:
        InvalidRequest: one of them is no name.
    """
    check_item_name(kind, item_id)
    return f"{_ROOT}{check_name('tenant', tenant)}/{kind}/{item_id}"


def _tenant(blob: BlobStat) -> str:
    return blob.name.split("/")[1]


def _absent(item: Item) -> NotFound:
    return NotFound(f"{item.kind} {item.id!r}: there is none")
