"""Pins: documents and collections whose chunks stay in the nodes' tiers, whatever else is read.

What is pinned is written down as one small blob beside the manifests, by the home node; the chunks that it
means follow from the documents there are, so a pinned collection includes what is added later. The other
nodes ask for the set when its version changes.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass

from services.kv_store.blobs.protocol import Blobs
from services.kv_store.documents.catalog import Document
from services.kv_store.documents.sealed_json import seal, unseal, unseal_lines
from shared.errors import NotFound, StorageFull, Unavailable
from shared.kv_types import PinnedChunks

log = logging.getLogger(__name__)

BLOB = "pins.json"
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

    def __init__(self, blobs: Blobs, documents: Callable[[], Sequence[Document]]) -> None:
        """``documents``: those there are, of all tenants. Asks nothing of ``blobs``."""
        self._blobs, self._documents = blobs, documents
        self._lock = threading.Lock()
        self._pins: frozenset[Pin] | None = None
        self._known: tuple[Sequence[Document], PinnedChunks] = [], _NOTHING

    def load(self) -> None:
        """Reads what was written down, once. Raises what ``Blobs`` raise."""
        with self._lock:
            if self._pins is None:
                self._pins = _load(self._blobs)

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
        what = f"document {pin.document_id!r} of collection" if pin.document_id else "collection"
        if unpin and pin not in pins:
            raise NotFound(f"{what} {pin.collection!r} is not pinned; `kvquilt store pins` lists what is")
        if not unpin and not self.documents_of([pin]):
            raise NotFound(f"{what} {pin.collection!r} does not exist")
        return pins - {pin} if unpin else pins | {pin}

    def change(self, pin: Pin, unpin: bool) -> None:
        """Written down before it holds. Raises like ``with_change``."""
        pins = self.with_change(pin, unpin)
        with self._lock:
            self._blobs.put(BLOB, seal({"pins": [astuple(p) for p in sorted(pins)]}))
            self._pins = pins

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
        assert self._pins is None or self._pins == _load(self._blobs)


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


def _version(ids: frozenset[str]) -> str:
    return hashlib.blake2b("\n".join(sorted(ids)).encode(), digest_size=16).hexdigest()


def _load(blobs: Blobs) -> frozenset[Pin]:
    """Damaged ones are forgotten: pins are a convenience, and whoever set them can set them again."""
    try:
        data = b"".join(blobs.read(BLOB))
    except NotFound:
        return frozenset()
    try:
        pins = unseal(data)["pins"] if data.startswith(b"{") else unseal_lines(data)
    except (ValueError, KeyError):
        log.error("the list of pins is damaged; nothing is pinned any more")
        return frozenset()
    return frozenset(Pin(*fields) for fields in pins)
