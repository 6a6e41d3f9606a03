"""Pins: documents and collections whose chunks stay in the nodes' tiers, whatever else is read.

What is pinned is written down as one small blob beside the manifests, and once more as its copy, by the home
node; the chunks that it
means follow from the documents there are, so a pinned collection includes what is added later. The other
nodes ask for the set when its version changes.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass

from services.kv_store.blobs.protocol import Blobs
from services.kv_store.documents.catalog import Document
from services.kv_store.documents.sealed_json import seal, unseal, unseal_lines
from shared.errors import KvquiltError, NewerFormat, NotFound, StorageFull, Unavailable
from shared.kv_format import SealKeys
from shared.kv_reports import DamagedRecord
from shared.pinned import PinnedChunks

log = logging.getLogger(__name__)

BLOB, COPY = "pins.json", "pins.copy.json"
_LARGEST_SHARE = 0.9


@dataclass(frozen=True, slots=True, order=True)
class Pin:
    """``document_id`` empty: the whole collection."""

    tenant: str
    collection: str
    document_id: str = ""


_NOTHING = PinnedChunks("")


class Pins:
    """Thread-safe; ``load`` and the changes block on ``blobs``."""

    def __init__(
        self, blobs: Blobs, documents: Callable[[], Sequence[Document]], keys: SealKeys | None = None
    ) -> None:
        """``documents``: those there are, of all tenants. Asks nothing of ``blobs``. ``keys``: as of
        ``Documents``."""
        self._keys = keys
        self._blobs, self._documents = blobs, documents
        self._lock = threading.Lock()
        self._pins: frozenset[Pin] | None = None
        self.damaged = False
        """Neither copy is whole: nothing is pinned until somebody pins it again."""
        self._known: tuple[Sequence[Document], PinnedChunks] = [], _NOTHING

    def load(self) -> None:
        """Reads what was written down, once. Raises what ``Blobs`` raise."""
        with self._lock:
            if self._pins is None:
                self._pins, self.damaged = _load(self._blobs, self._keys)

    def verify(self, repair: bool = False) -> list[DamagedRecord]:
        """Reads both copies; ``repair``: a damaged one is restored by the other one."""
        self.load()
        with self._lock:
            found = [name for name in (BLOB, COPY) if _is_damaged(_read(self._blobs, name), self._keys)]
            restored = repair and bool(found) and not self.damaged
            if restored:
                self._write(self._pins or frozenset())
        return [DamagedRecord(name, "it fails its checksum", restored) for name in found]

    def of(self, tenant: str) -> list[Pin]:
        self.load()
        return sorted(p for p in self._pins or () if p.tenant == tenant)

    def with_change(self, pin: Pin, unpin: bool) -> frozenset[Pin]:
        """The pins as they would be.

        Raises:
            NotFound: there are no such documents, or they are not pinned.
        """
        self.load()
        pins = self._pins or frozenset()
        if unpin and pin not in pins:
            raise NotFound(f"{_named(pin)} is not pinned; `kvquilt store pins` lists what is")
        if not unpin and not self.documents_of([pin]):
            raise no_such(pin)
        return pins - {pin} if unpin else pins | {pin}

    def change(self, pin: Pin, unpin: bool) -> None:
        """Written down before it holds. Raises like ``with_change``."""
        pins = self.with_change(pin, unpin)
        with self._lock:
            self._write(pins)
            self._pins, self.damaged = pins, False

    def documents_of(self, pins: Collection[Pin]) -> list[Document]:
        return [
            d
            for d in self._documents()
            if Pin(d.tenant, d.collection) in pins or Pin(d.tenant, d.collection, d.document_id) in pins
        ]

    def chunks(self) -> PinnedChunks:
        """Finds what all pins mean now.

        Raises:
            Unavailable: it was not ``load``ed yet.
        """
        if self._pins is None:
            raise Unavailable("what is pinned is not known yet: the object store has not answered; retry")
        pinned = self.documents_of(self._pins) if self._pins else []
        with self._lock:
            if pinned != self._known[0]:
                ids = frozenset(c for d in pinned for c in d.chunk_ids)
                self._known = pinned, PinnedChunks(_version(ids), ids)
            return self._known[1]

    def check_invariants(self) -> None:
        assert self._pins is None or self._pins == _load(self._blobs, self._keys)[0]

    def _write(self, pins: frozenset[Pin]) -> None:
        data = seal({"pins": [astuple(p) for p in sorted(pins)]}, self._keys)
        self._blobs.put(BLOB, data)
        try:
            self._blobs.put(COPY, data)
        except KvquiltError as error:  # an older copy would be worse than none
            log.warning("the pins have no second copy: %s", error.detail)
            with suppress(KvquiltError):
                self._blobs.delete(COPY)


def check_room(num_bytes: int, capacities: Mapping[str, int]) -> None:
    """``capacities``: of the disk tier of every node, 0 where there is no limit.

    Raises:
        StorageFull: so much cannot be pinned, because some node would have no room left for anything else.
    """
    smallest = min((c for c in capacities.values() if c), default=0)
    if smallest and num_bytes > smallest * _LARGEST_SHARE:
        raise StorageFull(
            f"{num_bytes} bytes would be pinned, but the smallest node's disk tier holds {smallest}, "
            "of which at most "
            f"{_LARGEST_SHARE:.0%} may be pinned; unpin something, or give kv_store a larger disk tier"
        )


def no_such(pin: Pin) -> NotFound:
    return NotFound(f"{_named(pin)} does not exist")


def _named(pin: Pin) -> str:
    what = f"document {pin.document_id!r} of collection" if pin.document_id else "collection"
    return f"{what} {pin.collection!r}"


def _version(ids: frozenset[str]) -> str:
    return hashlib.blake2b("\n".join(sorted(ids)).encode(), digest_size=16).hexdigest()


def _load(blobs: Blobs, keys: SealKeys | None) -> tuple[frozenset[Pin], bool]:
    """Reads what either copy says, the first one rather, and whether there was something of which neither
    says anything: pins are a convenience, and whoever set them can set them again."""
    written = [data for name in (BLOB, COPY) if (data := _read(blobs, name)) is not None]
    for data in written:
        if not _is_damaged(data, keys):
            return _parse(data, keys), False
    if written:
        log.error("the list of pins is damaged; nothing is pinned any more")
    return frozenset(), bool(written)


def _read(blobs: Blobs, name: str) -> bytes | None:
    try:
        return b"".join(blobs.read(name))
    except NotFound:
        return None


def _parse(data: bytes, keys: SealKeys | None) -> frozenset[Pin]:
    """
    Raises:
        ValueError, KeyError: it is not what was written. NewerFormat: its key is not here.
    """
    pins = unseal(data, keys=keys)["pins"] if data.startswith(b"{") else unseal_lines(data)
    return frozenset(Pin(*fields) for fields in pins)


def _is_damaged(data: bytes | None, keys: SealKeys | None) -> bool:
    try:
        if data is not None:
            _parse(data, keys)
    except (ValueError, KeyError, TypeError, NewerFormat):
        return True
    return False
