"""Keeps in memory what the manifests say: documents, the references that follow from them, removals that are
not finished."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass

from services.kv_store.documents.manifest_json import decode_stored
from services.kv_store.documents.manifest_names import REMOVED, Key, name_of
from shared.errors import NewerFormat
from shared.generation.described import MadeFor
from shared.kv_format import SealKeys
from shared.kv_types import AlikeDocuments, Manifest
from shared.principals.principal import Principal
from shared.readers import EVERYBODY, Readers, may_read, reads_everything


@dataclass(frozen=True, slots=True)
class Document:
    """Each of its chunks of KV once, the auxiliary's too: a document refers to a chunk or it does not.
    ``parent_ids``: what its chunks are computed behind. ``made_for`` None: it is gone. ``readers``: who may
    read it; ``sections``: of those that have fewer readers the ids of both kinds. ``source``: hash of what it
    was made of; empty: not known. ``stored_by``: the principal who brought that; empty: an earlier version
    stored it, which did not say."""

    tenant: str
    collection: str
    document_id: str
    chunk_ids: tuple[str, ...]
    parent_ids: frozenset[str] = frozenset()
    made_for: MadeFor | None = None
    readers: Readers = EVERYBODY
    sections: tuple[tuple[Readers, frozenset[str]], ...] = ()
    source: str = ""
    stored_by: str = ""

    @property
    def key(self) -> Key:
        return self.tenant, self.collection, self.document_id

    def readable_by(self, who: Principal) -> bool:
        """Whether ``who`` may read some of it."""
        return may_read(who, self.readers)

    def wholly_readable_by(self, who: Principal) -> bool:
        return self.readable_by(who) and all(may_read(who, readers) for readers, _ in self.sections)

    def shows(self, who: Principal, chunk_id: str) -> bool:
        """Whether ``who`` may read what ``chunk_id``, which is one of its ids, stands for. The same text may
        stand in several sections."""
        of = [readers for readers, ids in self.sections if chunk_id in ids] or [self.readers]
        return self.readable_by(who) and any(may_read(who, readers) for readers in of)


@dataclass(frozen=True, slots=True)
class Removal:
    """A document that is gone, with the chunks it named; ``name``: of its manifest in ``removed/``."""

    name: str
    chunk_ids: tuple[str, ...]


class Catalog:
    """Not thread-safe. ``keys``: of the seals of manifests that are believed."""

    def __init__(self, keys: SealKeys | None = None) -> None:
        self._keys = keys
        self.documents: dict[str, Document] = {}
        self.pending: dict[str, Removal] = {}
        self.newer: set[str] = set()  # what they refer to is not known, and so
        self.damaged: set[str] = set()  # of these
        self.references: Counter[str] = Counter()
        self._names = NamesById()
        self._sorted: list[Key] | None = None

    @property
    def num_unknown(self) -> int:
        """Documents that may refer to any chunk."""
        return len(self.newer) + len(self.damaged)

    def load(self, name: str, data: bytes | None) -> None:
        """``data`` is what ``name`` holds now; None: it is gone.

        Raises:
            ValueError: damaged, or under another's name; what it refers to is not known any more.
        """
        self._forget(name)
        if data is None:
            return
        try:
            document = document_of(*decode_stored(data, self._keys, name))
        except NewerFormat:
            self.newer.add(name)
            return
        except ValueError:
            if not name.startswith(REMOVED):
                self.damaged.add(name)
            raise
        if name.startswith(REMOVED):
            self.pending[name] = Removal(name, document.chunk_ids)
        else:
            self.documents[name] = document
            self.references.update(document.chunk_ids)
            self._names.add(name, document)
            self._sorted = None

    def find(self, key: Key) -> Document | None:
        return self.documents.get(name_of(key))

    def having(self, chunk_id: str) -> list[Document]:
        """Those of which ``chunk_id`` is a chunk, or what one is computed behind."""
        return [self.documents[name] for name in self._names.of(chunk_id)]

    def keys_after(
        self,
        tenant: str,
        collection: str,
        start_after: str,
        who: Principal | None = None,
        descending: bool = False,
    ) -> list[Key]:
        """The tenant's documents of ``collection`` (empty: of all) behind the cursor (``Manifest.cursor``),
        in order, or in the opposite one; of ``who`` those that it may read."""
        after_collection, _, after_document = (
            ("", "", start_after) if collection else start_after.partition("/")
        )
        if self._sorted is None:
            self._sorted = sorted(d.key for d in self.documents.values())
        cursor = (tenant, collection or after_collection, after_document)
        start = bisect_right(self._sorted, cursor)
        end = (
            bisect_right(self._sorted, (tenant, collection, "\U0010ffff"))
            if collection
            else len(self._sorted)
        )
        if descending and start_after:
            start, end = (
                bisect_right(self._sorted, (tenant, collection, "")),
                bisect_left(self._sorted, cursor),
            )
        keys = [key for key in self._sorted[start:end] if key[0] == tenant]
        if descending:
            keys.reverse()
        if who is None or reads_everything(who):
            return keys
        return [key for key in keys if self.documents[name_of(key)].readable_by(who)]

    def counts(self, tenant: str, who: Principal | None = None) -> list[AlikeDocuments]:
        """The tenant's documents by collection and by what they were made for, in order; of ``who`` those
        that it may read."""
        own = [d for d in self.documents.values() if d.tenant == tenant]
        alike = Counter((d.collection, d.made_for) for d in own if who is None or d.readable_by(who))
        return sorted(
            (
                AlikeDocuments(
                    *(name, number, made.fingerprint, made.prefix, made.template),
                    kv_context=made.kv_context,
                    kv_scope=made.kv_scope,
                )
                for (name, made), number in alike.items()
                if made is not None
            ),
            key=astuple,
        )

    def check_invariants(self) -> None:
        assert self.references == Counter(c for d in self.documents.values() for c in d.chunk_ids)
        assert all(name_of(d.key) == name for name, d in self.documents.items())
        self._names.check_invariants(self.documents)
        assert self._sorted is None or self._sorted == sorted(d.key for d in self.documents.values())

    def _forget(self, name: str) -> None:
        self.newer.discard(name)
        self.damaged.discard(name)
        self.pending.pop(name, None)
        document = self.documents.pop(name, None)
        if document is not None:
            self._sorted = None
            self._names.discard(name, document)
            for chunk_id in document.chunk_ids:
                self.references[chunk_id] -= 1
                if not self.references[chunk_id]:
                    del self.references[chunk_id]


class NamesById:
    """The documents that have a chunk, by name. Most chunks are one document's: its name stands alone."""

    def __init__(self) -> None:
        self._names: dict[str, str | tuple[str, ...]] = {}

    def of(self, chunk_id: str) -> tuple[str, ...]:
        names = self._names.get(chunk_id, ())
        return (names,) if isinstance(names, str) else names

    def add(self, name: str, document: Document) -> None:
        for chunk_id in _ids_of(document):
            names = (*self.of(chunk_id), name)
            self._names[chunk_id] = name if len(names) == 1 else names

    def discard(self, name: str, document: Document) -> None:
        for chunk_id in _ids_of(document):
            names = tuple(other for other in self.of(chunk_id) if other != name)
            if names:
                self._names[chunk_id] = names[0] if len(names) == 1 else names
            else:
                del self._names[chunk_id]

    def check_invariants(self, documents: Mapping[str, Document]) -> None:
        expected = {(i, name) for name, document in documents.items() for i in _ids_of(document)}
        assert expected == {(chunk_id, name) for chunk_id in self._names for name in self.of(chunk_id)}


def document_of(manifest: Manifest, stored_by: str = "") -> Document:
    parent_ids = frozenset(chunk.parent_id for chunk in manifest.chunks if chunk.parent_id)
    key = (manifest.tenant, manifest.collection, manifest.document_id)
    of = (manifest.kv_ids, parent_ids, manifest.made_for)
    sections = tuple(_sections_of(manifest))
    return Document(*key, *of, manifest.readers, sections, manifest.source, stored_by)


def _sections_of(manifest: Manifest) -> Iterator[tuple[Readers, frozenset[str]]]:
    """With what has the document's own readers, which may be there as well."""
    ids: defaultdict[Readers, set[str]] = defaultdict(set)
    for i, chunk in enumerate(manifest.chunks if manifest.sections else ()):
        ids[manifest.readers_of(i)].update({chunk.chunk_id, chunk.auxiliary_id, chunk.parent_id} - {""})
    for readers in sorted(ids):
        yield readers, frozenset(ids[readers])


def _ids_of(document: Document) -> frozenset[str]:
    return document.parent_ids.union(document.chunk_ids)
