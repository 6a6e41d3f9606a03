"""Keeps in memory what the manifests say: documents, the references that follow from them, removals that are
not finished."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import astuple, dataclass
from hashlib import blake2b

from services.kv_store.documents.manifest_json import decode
from shared.errors import NewerFormat
from shared.generation.described import MadeFor
from shared.kv_types import AlikeDocuments, Manifest
from shared.request import check_name

Key = tuple[str, str, str]
"""Tenant, collection, document id."""


@dataclass(frozen=True, slots=True)
class Document:
    """Each of its chunks of KV once, the auxiliary's too: a document refers to a chunk or it does not.
    ``parent_ids``: what its chunks are computed behind. ``made_for`` None: it is gone."""

    tenant: str
    collection: str
    document_id: str
    chunk_ids: tuple[str, ...]
    parent_ids: frozenset[str] = frozenset()
    made_for: MadeFor | None = None

    @property
    def key(self) -> Key:
        return self.tenant, self.collection, self.document_id


@dataclass(frozen=True, slots=True)
class Removal:
    """A document that is gone, with the chunks it named; ``name``: of its manifest in ``removed/``."""

    name: str
    chunk_ids: tuple[str, ...]


def name_of(key: Key) -> str:
    """
    Raises:
        InvalidRequest: tenant or collection is no name.
    """
    tenant, collection, document_id = key
    check_name("tenant", tenant)
    check_name("collection", collection)
    return f"manifests/{tenant}/{collection}/{blake2b(document_id.encode(), digest_size=20).hexdigest()}.json"


class Catalog:
    """Not thread-safe."""

    def __init__(self) -> None:
        self.documents: dict[str, Document] = {}
        self.pending: dict[str, Removal] = {}
        self.newer: set[str] = set()  # what they refer to is not known, and so
        self.damaged: set[str] = set()  # of these
        self.references: Counter[str] = Counter()
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
            document = document_of(decode(data))
            if not name.startswith("removed/") and name != name_of(document.key):
                raise ValueError("it is another document's")
        except NewerFormat:
            self.newer.add(name)
            return
        except ValueError:
            if not name.startswith("removed/"):
                self.damaged.add(name)
            raise
        if name.startswith("removed/"):
            self.pending[name] = Removal(name, document.chunk_ids)
        else:
            self.documents[name] = document
            self.references.update(document.chunk_ids)
            self._sorted = None

    def keys_after(self, tenant: str, collection: str, start_after: str) -> list[Key]:
        """The tenant's documents of ``collection`` (empty: of all) behind the cursor (``Manifest.cursor``),
        in order."""
        after_collection, _, after_document = (
            ("", "", start_after) if collection else start_after.partition("/")
        )
        if self._sorted is None:
            self._sorted = sorted(d.key for d in self.documents.values())
        start = bisect_right(self._sorted, (tenant, collection or after_collection, after_document))
        end = (
            bisect_right(self._sorted, (tenant, collection, "\U0010ffff"))
            if collection
            else len(self._sorted)
        )
        return [key for key in self._sorted[start:end] if key[0] == tenant]

    def counts(self, tenant: str) -> list[AlikeDocuments]:
        """The tenant's documents by collection and by what they were made for, in order."""
        alike = Counter((d.collection, d.made_for) for d in self.documents.values() if d.tenant == tenant)
        return sorted(
            (
                AlikeDocuments(name, number, made.fingerprint, made.prefix, made.template, made.kv_context)
                for (name, made), number in alike.items()
                if made is not None
            ),
            key=astuple,
        )

    def check_invariants(self) -> None:
        assert self.references == Counter(c for d in self.documents.values() for c in d.chunk_ids)
        assert all(name_of(d.key) == name for name, d in self.documents.items())
        assert self._sorted is None or self._sorted == sorted(d.key for d in self.documents.values())

    def _forget(self, name: str) -> None:
        self.newer.discard(name)
        self.damaged.discard(name)
        self.pending.pop(name, None)
        document = self.documents.pop(name, None)
        if document is not None:
            self._sorted = None
            for chunk_id in document.chunk_ids:
                self.references[chunk_id] -= 1
                if not self.references[chunk_id]:
                    del self.references[chunk_id]


def document_of(manifest: Manifest) -> Document:
    parent_ids = frozenset(chunk.parent_id for chunk in manifest.chunks if chunk.parent_id)
    key = (manifest.tenant, manifest.collection, manifest.document_id)
    return Document(*key, manifest.kv_ids, parent_ids, manifest.made_for)
