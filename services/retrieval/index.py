"""The index over chunks in Milvus: one Milvus collection per tenant and collection, one row per chunk.

A tenant's rows are in collections of its own, so no filter stands between tenants and term statistics do not
mix. All calls block; writes come from one thread at a time, reads from any number.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence

from services.retrieval.collection import Collection, Ranked
from services.retrieval.embedder import Vectors
from services.retrieval.layout import (
    collection_in,
    create_missing_indexes,
    milvus_name,
    schema_of,
    tenant_prefix,
)
from services.retrieval.lexicon import row_vector
from services.retrieval.milvus import CALL_S, Lexical, Milvus, translated
from services.retrieval.rows import (
    OUTPUT_FIELDS,
    document_id_of,
    document_key,
    hit_of,
    revision_of,
    rows_of,
)
from shared.errors import Conflict, FailedPrecondition, NotFound, Unavailable
from shared.search import CollectionInfo, IndexedDocument, IndexedIds, SearchHit

log = logging.getLogger(__name__)


class MilvusIndex:
    def __init__(self, milvus: Milvus, embedder_identity: str, dim: int) -> None:
        self._milvus = milvus
        self._client = milvus.client
        self._embedder = embedder_identity
        self._dim = dim
        self._load_lock = threading.RLock()
        self._loaded: dict[str, Collection] = {}

    @property
    def has_bm25(self) -> bool:
        return self._milvus.lexical is not Lexical.NONE

    def version(self) -> str:
        """Asks Milvus, so it also tells whether it answers."""
        with translated("asking for its version"):
            return str(self._client.get_server_version(timeout=CALL_S))

    def collections(self, tenant: str) -> list[CollectionInfo]:
        with self._load_lock, translated("listing collections"):
            return [
                CollectionInfo(collection_in(name), self._load(name).count())
                for name in sorted(self._names_of(tenant))
            ]

    def documents(self, tenant: str, collection: str) -> IndexedIds:
        """The documents that have rows, whichever embedder made them."""
        names = self._names_of(tenant, collection)
        found: set[str] = set()
        for name in names:
            loaded = self._load(name)
            with self._using(loaded, "listing documents"):
                found.update(document_id_of(row) for row in loaded.all_rows(["payload"]))
        own = milvus_name(tenant, collection, self._embedder)
        return IndexedIds(tuple(sorted(found)), other_embedder=any(name != own for name in names))

    def is_current(self, tenant: str, collection: str, document: IndexedDocument) -> bool:
        """Whether exactly these chunks of the document are searchable."""
        loaded = self._open(tenant, collection)
        if loaded is None:
            return not document.chunks
        with self._using(loaded, "looking up a document"):
            stored = loaded.rows_where(_of(document.document_id), ["revision"])
        return len(stored) == len(document.chunks) and {row["revision"] for row in stored} <= {
            revision_of(document)
        }

    def put(self, tenant: str, collection: str, document: IndexedDocument, vectors: Vectors) -> None:
        """Replaces the document's rows; returns when the new ones are searchable.

        Raises:
            InvalidRequest: a chunk does not fit in a row.
            FailedPrecondition: the collection's vectors come from another embedder.
            Conflict: somebody else replaced the same document at the same time.
        """
        rows = rows_of(tenant, collection, document)
        for row, vector in zip(rows, vectors, strict=True):
            row["dense"] = vector.tolist()
            if self._milvus.lexical is Lexical.OWN:
                row["sparse"] = row_vector(row["content"])
        loaded = self._open(tenant, collection) or self._create(tenant, collection)
        old = f'{_of(document.document_id)} and revision != "{revision_of(document)}"'
        with contextlib.suppress(NotFound):  # another replica removed the collection meanwhile
            with self._using(loaded, "writing to the index", changing=True):
                loaded.upsert(rows)
                loaded.delete_where(old)
                loaded.settle()
            if self.is_current(tenant, collection, document):
                return
        raise Conflict(
            f"document {document.document_id!r} was changed by another request at the same time; retry"
        )

    def remove(self, tenant: str, collection: str, document_ids: Sequence[str]) -> int:
        """Removes the documents' rows and answers how many; a collection that is empty afterwards ceases to
        exist."""
        removed = 0
        for name in self._names_of(tenant, collection):
            with contextlib.suppress(NotFound):  # another replica was faster
                removed += self._remove(name, document_ids)
        return removed

    def search_dense(
        self, tenant: str, collection: str, vectors: Vectors, limit: int, expression: str
    ) -> list[Ranked]:
        loaded = self._existing(tenant, collection)
        params = {} if self._milvus.embedded else {"ef": max(2 * limit, 64)}
        with self._using(loaded, "searching"):
            return loaded.search(vectors.tolist(), "dense", "COSINE", params, limit, expression)

    def search_bm25(
        self, tenant: str, collection: str, texts: Sequence[str], limit: int, expression: str
    ) -> list[Ranked]:
        loaded = self._existing(tenant, collection)
        with self._using(loaded, "searching"):
            if self._milvus.lexical is Lexical.SERVER:
                return loaded.search(list(texts), "sparse", "BM25", {}, limit, expression)
            queries = [loaded.lexicon.query_vector(text) for text in texts]
            found = iter(loaded.search([q for q in queries if q], "sparse", "IP", {}, limit, expression))
            return [next(found) if query else [] for query in queries]

    def fetch(self, tenant: str, collection: str, row_ids: Sequence[str]) -> dict[str, SearchHit]:
        """The rows that (still) exist, with score 0."""
        loaded = self._existing(tenant, collection)
        with self._using(loaded, "reading from the index"):
            return {row["row_id"]: hit_of(row, 0.0) for row in loaded.rows(row_ids, OUTPUT_FIELDS)}

    def close(self) -> None:
        self._milvus.close()

    def _remove(self, name: str, document_ids: Sequence[str]) -> int:
        loaded = self._load(name)
        with self._using(loaded, "removing from the index", changing=True):
            removed = sum(loaded.delete_where(_of(document_id)) for document_id in document_ids)
            if loaded.count() == 0:
                loaded.drop()
                self._loaded.pop(name, None)
            else:
                loaded.settle()
        return removed

    def _existing(self, tenant: str, collection: str) -> Collection:
        loaded = self._open(tenant, collection)
        if loaded is None:
            known = [info.name for info in self.collections(tenant)]
            there = (
                f"there are: {', '.join(known[:20])}{', …' if len(known) > 20 else ''}"
                if known
                else "there is none yet"
            )
            raise NotFound(f"collection {collection!r} does not exist; {there}")
        return loaded

    def _open(self, tenant: str, collection: str) -> Collection | None:
        """The collection, ready for use; None if it does not exist."""
        name = milvus_name(tenant, collection, self._embedder)
        # also while looking: milvus-lite opens a collection twice when it is listed while it is loaded
        with self._load_lock:
            if name not in self._loaded:
                names = self._names_of(tenant, collection)
                if not names:
                    return None
                if name not in names:
                    raise FailedPrecondition(
                        f"collection {collection!r} was indexed with another embedder than {self._embedder}; "
                        "configure that embedder again, or index the collection anew: kvquilt retrieval "
                        f"rebuild -c {collection}"
                    )
            return self._load(name)

    def _load(self, name: str) -> Collection:
        with self._load_lock, translated("opening a collection"):
            if name not in self._loaded:
                create_missing_indexes(self._milvus, name)
                self._loaded[name] = Collection(self._milvus, name)
            return self._loaded[name]

    def _create(self, tenant: str, collection: str) -> Collection:
        name = milvus_name(tenant, collection, self._embedder)
        with translated("creating a collection"):
            self._client.create_collection(
                name, schema=schema_of(self._milvus, self._dim), consistency_level="Strong", timeout=CALL_S
            )
        log.info("created collection %s", collection)
        return self._load(name)

    def _names_of(self, tenant: str, collection: str = "") -> list[str]:
        """Milvus' names of the collection (empty: of all of the tenant's), whatever embedder it was made
        with."""
        with translated("looking up a collection"):
            names: list[str] = self._client.list_collections(timeout=CALL_S)
        return [
            name
            for name in names
            if name.startswith(tenant_prefix(tenant)) and collection in ("", collection_in(name))
        ]

    @contextlib.contextmanager
    def _using(self, loaded: Collection, doing: str, changing: bool = False) -> Iterator[None]:
        """Milvus' errors as ours. A collection that vanished or is not loaded any more is forgotten, and so
        is one whose change failed midway: its lexicon is in doubt and read anew with the next use."""
        try:
            with translated(doing):
                yield
        except BaseException as error:
            if changing or isinstance(error, (NotFound, Unavailable)):
                self._loaded.pop(loaded.name, None)
            raise


def _of(document_id: str) -> str:
    """The expression for a document's rows."""
    return f'document_key == "{document_key(document_id)}"'
