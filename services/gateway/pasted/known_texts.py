"""Keeps, for each circle of readers, the hashes of all chunks that they may read.

They come from the manifests in the KV store, asked for as whoever pastes: a tenant's texts are in no other
one's index, and in nobody's who may not read them. What is kept is looked through again, in the background,
by those who use it; only documents that changed are fetched. It may be behind: a match is a place to look at,
and what the store says then is what counts (``recognising``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from services.gateway.pasted.known_chunks import DocumentHashes, KnownChunks, hashes_of
from shared.errors import KvquiltError, NotFound
from shared.kv_types import Manifest
from shared.readers import reads_everything
from shared.request import RequestContext

log = logging.getLogger(__name__)

_READING_S = 120.0
_PAUSE = 20  # of what looking through takes: many documents are looked through less often
_CIRCLE_BYTES, _DOCUMENT_BYTES = 2000, 400  # names and versions, as Python keeps them
_EVERYTHING = ("*",)


class DocumentSource(Protocol):
    """The part of the KV store's client that is needed."""

    def list_manifests(
        self, ctx: RequestContext, collection: str = "", summary: bool = False
    ) -> AsyncGenerator[Manifest, None]: ...

    async def get_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> Manifest:
        """
        Raises:
            NotFound: no such document.
        """
        ...


@dataclass(frozen=True, slots=True)
class DocumentName:
    collection: str
    document_id: str


@dataclass(frozen=True, slots=True)
class KnownIndex:
    """``names``: of the documents, by the numbers that ``chunks`` has."""

    names: tuple[DocumentName, ...]
    chunks: KnownChunks


_NOTHING = KnownIndex((), KnownChunks(()))
_Document = tuple[object, DocumentHashes]
"""By what it is seen that it changed, and its hashes."""


@dataclass(slots=True)
class _Circle:
    """Of principals who read the same. ``due_s``: when its documents are to be looked through again; None:
    they never were."""

    documents: dict[DocumentName, _Document] = field(default_factory=dict)
    index: KnownIndex = _NOTHING
    due_s: float | None = None
    reading: asyncio.Task[None] | None = None

    @property
    def num_bytes(self) -> int:
        return _CIRCLE_BYTES + sum(_bytes_of(hashes) for _, hashes in self.documents.values())


class KnownTexts:
    def __init__(
        self,
        source: DocumentSource,
        most_bytes: int,
        refresh_s: float,
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``most_bytes``: of all circles; those that were not used for longest go first, and one that does
        not fit alone knows a part of its documents. ``wait_s``: how long the first question waits."""
        self._source, self._most_bytes = source, most_bytes
        self._refresh_s, self._wait_s, self._clock = refresh_s, wait_s, clock
        self._circles: OrderedDict[tuple[str, ...], _Circle] = OrderedDict()

    async def of(self, ctx: RequestContext) -> KnownIndex:
        """Of what the caller may read: as of lately, or empty if the store takes too long to tell."""
        who = ctx.principal
        groups = _EVERYTHING if reads_everything(who) else sorted(who.groups)
        key = (ctx.tenant, *groups)
        circle = self._circles.setdefault(key, _Circle())
        self._circles.move_to_end(key)
        due = circle.due_s is None or self._clock() >= circle.due_s
        if due and circle.reading is None:
            circle.reading = asyncio.create_task(self._read(ctx.lasting(_READING_S), key, circle))
        if circle.due_s is None and circle.reading is not None:
            await asyncio.wait([circle.reading], timeout=min(self._wait_s, ctx.remaining_s))
        return circle.index

    def check_invariants(self) -> None:
        """
        Raises:
            AssertionError: more is kept than may be, or an index is not of its documents.
        """
        assert len(self._circles) <= 1 or self.num_bytes <= self._most_bytes
        for circle in self._circles.values():
            if circle.reading is None:
                assert set(circle.index.names) == set(circle.documents)

    @property
    def num_bytes(self) -> int:
        return sum(circle.num_bytes for circle in self._circles.values())

    async def _read(self, ctx: RequestContext, key: tuple[str, ...], circle: _Circle) -> None:
        began, found = self._clock(), dict[DocumentName, _Document]()
        try:
            await self._look_through(ctx, circle.documents, found)
        except KvquiltError as error:
            log.warning("known texts: some documents were not read, and stay as they were known: %s", error)
            found = circle.documents | found
            whole = False
        else:
            whole = True
        try:
            circle.index = await asyncio.to_thread(_indexed, found)
            circle.documents = found
            if found or whole:
                took_s = self._clock() - began
                circle.due_s = self._clock() + max(self._refresh_s, _PAUSE * took_s)
        finally:
            circle.reading = None
            self._make_room(key)

    async def _look_through(
        self, ctx: RequestContext, known: dict[DocumentName, _Document], found: dict[DocumentName, _Document]
    ) -> None:
        """Fills ``found``. What did not change is not fetched, if anything is known."""
        room = self._most_bytes - _CIRCLE_BYTES
        async for manifest in self._source.list_manifests(ctx, summary=bool(known)):
            name, version = DocumentName(manifest.collection, manifest.document_id), _version(manifest)
            document = known.get(name)
            if document is None or document[0] != version:
                whole = manifest
                if known:
                    try:
                        whole = await self._source.get_manifest(ctx, name.collection, name.document_id)
                    except NotFound:
                        continue
                texts = [chunk.text for chunk in whole.chunks]
                document = (version, await asyncio.to_thread(hashes_of, texts))
            room -= _bytes_of(document[1])
            if room < 0:
                log.warning("known texts: gateway.pasted.known_bytes is too little for all of %r", ctx.tenant)
                return
            found[name] = document

    def _make_room(self, kept: tuple[str, ...]) -> None:
        for key in list(self._circles):
            if self.num_bytes <= self._most_bytes:
                return
            if key != kept and self._circles[key].reading is None:
                del self._circles[key]


def _bytes_of(hashes: DocumentHashes) -> int:
    """Kept twice: by document, and in the index."""
    return _DOCUMENT_BYTES + 2 * hashes.num_bytes


def _version(manifest: Manifest) -> object:
    return manifest.source_hash, manifest.created_s, manifest.readers, manifest.sections


def _indexed(documents: dict[DocumentName, _Document]) -> KnownIndex:
    hashes: Sequence[DocumentHashes] = [one for _, one in documents.values()]
    return KnownIndex(tuple(documents), KnownChunks(hashes))
