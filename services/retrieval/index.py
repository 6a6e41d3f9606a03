"""The index over chunks in Milvus: one Milvus collection per tenant, collection and embedder, one row per
chunk.

A tenant's rows are in collections of its own, so no filter stands between tenants and term statistics do
not mix. A collection that is indexed anew for another embedder is there twice until ``adopt``: the old one
is searched, the new one is filled (``layout``). All calls block; writes come from one thread at a time,
reads from any number.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence

from services.retrieval.collection import Collection, Ranked
from services.retrieval.embedder import EmbedderSettings, Vectors
from services.retrieval.filters import IN_OTHER_LANGUAGE
from services.retrieval.layout import (
    Places,
    collection_in,
    create_missing_indexes,
    generation_in,
    is_of,
    is_ours,
    milvus_name,
    oldest,
    properties_of,
    schema_of,
    settings_in,
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
from shared.errors import Conflict, NotFound, Unavailable
from shared.search import CollectionInfo, IndexedDocument, IndexedIds, SearchHit

log = logging.getLogger(__name__)


class MilvusIndex:
    """``embedder_identity``, ``dim``, ``settings``: of the configured embedder."""

    def __init__(
        self,
        milvus: Milvus,
        embedder_identity: str,
        dim: int,
        settings: EmbedderSettings | None = None,
    ) -> None:
        self._milvus = milvus
        self._client = milvus.client
        self._embedder = embedder_identity
        self._dim = dim
        self._settings = settings
        self._load_lock = threading.RLock()
        self._loaded: dict[str, Collection] = {}
        self._places: dict[tuple[str, str], Places] = {}

    @property
    def has_bm25(self) -> bool:
        return self._milvus.lexical is not Lexical.NONE

    def version(self) -> str:
        """Asks Milvus, so it also tells whether it answers."""
        with translated("asking for its version"):
            return str(self._client.get_server_version(timeout=CALL_S))

    def collections(self, tenant: str) -> list[CollectionInfo]:
        with self._load_lock, translated("listing collections"):
            searched = oldest(self._names_of(tenant))
            return [
                CollectionInfo(collection_in(name), self._load(name).count()) for name in sorted(searched)
            ]

    def documents(self, tenant: str, collection: str) -> IndexedIds:
        """The documents that have rows, whichever embedder made them."""
        names = self._names_of(tenant, collection)
        found: set[str] = set()
        for name in names:
            loaded = self._load(name)
            with self._using(loaded, "listing documents"):
                found.update(document_id_of(row) for row in loaded.all_rows(["payload"]))
        others = any(not is_of(name, self._embedder) for name in names)
        return IndexedIds(tuple(sorted(found)), other_embedder=others)

    def places(self, tenant: str, collection: str) -> Places:
        key = (tenant, collection)
        known = self._places.get(key)
        if known and known.searched == known.own and known.own in self._loaded:
            return known  # it stays the oldest for as long as it is there
        names = sorted(self._names_of(tenant, collection), key=generation_in)
        own = next((name for name in names if is_of(name, self._embedder)), "")
        if not own:
            generation = generation_in(names[-1]) + 1 if names else 0
            own = milvus_name(tenant, collection, self._embedder, generation)
        self._places[key] = Places(own, names[0] if names else "")
        return self._places[key]

    def searched(self, tenant: str, collection: str) -> Places:
        """
        Raises:
            NotFound: there is no such collection; the detail lists those there are.
        """
        places = self.places(tenant, collection)
        if places.searched:
            return places
        known = [info.name for info in self.collections(tenant)]
        there = (
            f"there are: {', '.join(known[:20])}{', …' if len(known) > 20 else ''}"
            if known
            else "there is none yet"
        )
        raise NotFound(f"collection {collection!r} does not exist; {there}")

    def settings_of(self, name: str) -> EmbedderSettings | None:
        """Of the embedder that made the vectors; None: an older version did not note it."""
        with translated("looking up a collection's embedder"):
            described = self._client.describe_collection(name, timeout=CALL_S)
        return settings_in(described.get("properties") or {})

    def outdated(self) -> int:
        """How many collections, of all tenants, another embedder than the configured one is searched in."""
        return sum(not is_of(name, self._embedder) for name in oldest(self._all_names()))

    def in_other_languages(self) -> tuple[int, int]:
        """How many chunks are of documents that are not English, and how many there are, in the collections
        that were used since the start."""
        counts = []
        for loaded in list(self._loaded.values()):
            with contextlib.suppress(NotFound), self._using(loaded, "counting chunks"):
                counts.append((loaded.count(IN_OTHER_LANGUAGE), loaded.count()))
        return sum(others for others, _ in counts), sum(num for _, num in counts)

    def is_current(self, name: str, document: IndexedDocument) -> bool:
        """Whether exactly these chunks of the document are in the Milvus collection ``name``."""
        if name not in self._loaded and name not in self._all_names():
            return not document.chunks
        loaded = self._load(name)
        with self._using(loaded, "looking up a document"):
            stored = loaded.rows_where(_of(document.document_id), ["revision"])
        return len(stored) == len(document.chunks) and {row["revision"] for row in stored} <= {
            revision_of(document)
        }

    def put(
        self, name: str, tenant: str, collection: str, document: IndexedDocument, vectors: Vectors
    ) -> None:
        """Replaces the document's rows in the Milvus collection ``name``, one of its ``places``; returns
        when the new ones are searchable there.

        Raises:
            InvalidRequest: a chunk does not fit in a row.
            Conflict: somebody else replaced the same document at the same time.
        """
        rows = rows_of(tenant, collection, document)
        for row, vector in zip(rows, vectors, strict=True):
            row["dense"] = vector.tolist()
            if self._milvus.lexical is Lexical.OWN:
                row["sparse"] = row_vector(row["content"])
        if name not in self._loaded and name not in self._all_names():
            self._create(name, collection)
        loaded = self._load(name)
        old = f'{_of(document.document_id)} and revision != "{revision_of(document)}"'
        with contextlib.suppress(NotFound):  # another replica removed the collection meanwhile
            with self._using(loaded, "writing to the index", changing=True):
                loaded.upsert(rows)
                loaded.delete_where(old)
                loaded.settle()
            if self.is_current(name, document):
                return
        raise Conflict(
            f"document {document.document_id!r} was changed by another request at the same time; retry"
        )

    def remove(self, tenant: str, collection: str, document_ids: Sequence[str]) -> int:
        """Removes the documents' rows and answers how many were searched; a collection that is empty
        afterwards ceases to exist."""
        searched = self.places(tenant, collection).searched
        removed = 0
        for name in self._names_of(tenant, collection):
            with contextlib.suppress(NotFound):  # another replica was faster
                num_rows = self._remove(name, document_ids)
                removed += num_rows if name == searched else 0
        return removed

    def adopt(self, tenant: str, collection: str) -> int:
        """Drops what other embedders indexed, what is searched last: with that, the configured embedder's
        is searched. Returns how many were dropped; none where the configured embedder has indexed
        nothing."""
        own = self.places(tenant, collection).own
        names = sorted(self._names_of(tenant, collection), key=generation_in, reverse=True)
        others = [name for name in names if name != own] if own in names else []
        for name in others:
            with self._load_lock, contextlib.suppress(NotFound), translated("replacing a collection"):
                self._client.drop_collection(name, timeout=CALL_S)
            self._loaded.pop(name, None)
        if others:
            log.info("collection %s: now searched by %s", collection, self._embedder)
        return len(others)

    def search_dense(self, name: str, vectors: Vectors, limit: int, expression: str) -> list[Ranked]:
        loaded = self._load(name)
        params = {} if self._milvus.embedded else {"ef": max(2 * limit, 64)}
        with self._using(loaded, "searching"):
            return loaded.search(vectors.tolist(), "dense", "COSINE", params, limit, expression)

    def search_bm25(self, name: str, texts: Sequence[str], limit: int, expression: str) -> list[Ranked]:
        loaded = self._load(name)
        with self._using(loaded, "searching"):
            if self._milvus.lexical is Lexical.SERVER:
                return loaded.search(list(texts), "sparse", "BM25", {}, limit, expression)
            queries = [loaded.lexicon.query_vector(text) for text in texts]
            found = iter(loaded.search([q for q in queries if q], "sparse", "IP", {}, limit, expression))
            return [next(found) if query else [] for query in queries]

    def fetch(self, name: str, row_ids: Sequence[str]) -> dict[str, SearchHit]:
        """The rows that (still) exist, with score 0."""
        loaded = self._load(name)
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

    def _load(self, name: str) -> Collection:
        with self._load_lock, translated("opening a collection"):
            if name not in self._loaded:
                create_missing_indexes(self._milvus, name)
                self._loaded[name] = Collection(self._milvus, name)
            return self._loaded[name]

    def _create(self, name: str, collection: str) -> None:
        properties = properties_of(self._settings) if self._settings else None
        with translated("creating a collection"):
            self._client.create_collection(
                name,
                schema=schema_of(self._milvus, self._dim),
                consistency_level="Strong",
                properties=properties,
                timeout=CALL_S,
            )
        log.info("created collection %s", collection)

    def _names_of(self, tenant: str, collection: str = "") -> list[str]:
        """Milvus' names of the collection (empty: of all of the tenant's), whatever embedder it was made
        with."""
        return [
            name
            for name in self._all_names()
            if name.startswith(tenant_prefix(tenant)) and collection in ("", collection_in(name))
        ]

    def _all_names(self) -> list[str]:
        # milvus-lite opens a collection twice when it is listed while it is loaded
        with self._load_lock, translated("looking up a collection"):
            names: list[str] = self._client.list_collections(timeout=CALL_S)
        return [name for name in names if is_ours(name)]

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
