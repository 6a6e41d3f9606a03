"""The index over chunks in Milvus: one Milvus collection per tenant, collection and embedder, one row per
chunk.

A tenant's rows are in collections of its own, so no filter stands between tenants and term statistics do
not mix. Within a tenant, ``who`` asks: rows that it may not read are as if they were not there, and it
removes no document that has some. A collection that is indexed anew for another embedder is there twice until
``adopt``: the old one is searched, the new one is filled (``layout``). All calls block; writes come from one
thread at a time, reads from any number.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from functools import partial

from services.retrieval.collection import Ranked
from services.retrieval.document_rows import DocumentRows
from services.retrieval.embedder import EmbedderSettings, Vectors
from services.retrieval.filters import IN_OTHER_LANGUAGE, TERMS_FIELD, all_of, readers_in
from services.retrieval.layout import (
    Places,
    collection_in,
    generation_in,
    is_of,
    milvus_name,
    oldest,
    settings_in,
)
from services.retrieval.lexicon import row_vector
from services.retrieval.milvus import CALL_S, Lexical, Milvus, translated
from services.retrieval.opened import OpenCollections
from services.retrieval.rows import (
    OUTPUT_FIELDS,
    document_id_of,
    hit_of,
    revision_of,
    rows_of,
)
from shared.errors import Conflict, NotFound
from shared.principals.principal import Principal
from shared.readers import Readers, both, may_read, reads_everything
from shared.search import CollectionInfo, IndexedDocument, IndexedIds, SearchHit

log = logging.getLogger(__name__)
_WRITING = "writing to the index"


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
        self._open = OpenCollections(milvus)
        self._places: dict[tuple[str, str], Places] = {}

    @property
    def has_bm25(self) -> bool:
        return self._milvus.lexical is not Lexical.NONE

    def version(self) -> str:
        """Asks Milvus, so it also tells whether it answers."""
        with translated("asking for its version"):
            return str(self._client.get_server_version(timeout=CALL_S))

    def collections(self, tenant: str, who: Principal) -> list[CollectionInfo]:
        with self._open.lock, translated("listing collections"):
            found = map(self._open.load, sorted(oldest(self._open.names_of(tenant))))
            return [
                CollectionInfo(collection_in(one.name), one.count(one.readable_by(who)))
                for one in found
                if one.has_any_for(who)
            ]

    def documents(self, tenant: str, collection: str, who: Principal) -> IndexedIds:
        """The documents that have rows, whichever embedder made them."""
        found: set[str] = set()
        others = False
        for name in self._open.names_of(tenant, collection):
            loaded = self._open.load(name)
            with self._open.using(loaded, "listing documents"):
                rows = loaded.all_rows(["payload", TERMS_FIELD])
                ids = {document_id_of(row) for row in rows if may_read(who, readers_in(row))}
            others |= bool(ids) and not is_of(name, self._embedder)
            found |= ids
        return IndexedIds(tuple(sorted(found)), other_embedder=others)

    def places(self, tenant: str, collection: str) -> Places:
        key = (tenant, collection)
        known = self._places.get(key)
        if known and known.searched == known.own and known.own in self._open:
            return known  # it stays the oldest for as long as it is there
        names = sorted(self._open.names_of(tenant, collection), key=generation_in)
        own = next((name for name in names if is_of(name, self._embedder)), "")
        if not own:
            generation = generation_in(names[-1]) + 1 if names else 0
            own = milvus_name(tenant, collection, self._embedder, generation)
        self._places[key] = Places(own, names[0] if names else "")
        return self._places[key]

    def searched(self, tenant: str, collection: str, who: Principal) -> Places:
        """
        Raises:
            NotFound: there is no such collection; the detail lists those there are.
        """
        places = self.places(tenant, collection)
        if places.searched and (reads_everything(who) or self._has_any_for(who, places.searched)):
            return places
        known = [info.name for info in self.collections(tenant, who)]
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
        """Counts the collections, of all tenants, another embedder than the configured one is searched in."""
        return sum(not is_of(name, self._embedder) for name in oldest(self._open.all_names()))

    def in_other_languages(self) -> tuple[int, int]:
        """Counts the chunks of documents that are not English, and how many there are, in the collections
        that were used since the start."""
        counts = []
        for loaded in self._open.now():
            with contextlib.suppress(NotFound), self._open.using(loaded, "counting chunks"):
                counts.append((loaded.count(IN_OTHER_LANGUAGE), loaded.count()))
        return sum(others for others, _ in counts), sum(num for _, num in counts)

    def is_current(self, name: str, tenant: str, collection: str, document: IndexedDocument) -> bool:
        """Whether exactly these chunks of the document, with these readers, are in the Milvus collection
        ``name``."""
        if not self.has_content(name, document):
            return False
        with self._open.rows(name, document.document_id) as rows:
            return rows.has_readers(tenant, collection, document)

    def has_content(self, name: str, document: IndexedDocument) -> bool:
        """As ``is_current``, whatever readers they have there."""
        if not self._open.is_there(name):
            return not document.chunks
        with self._open.rows(name, document.document_id) as rows:
            return rows.has_content(document)

    def check_may_change(self, tenant: str, collection: str, document_id: str, who: Principal) -> None:
        """
        Raises:
            DocumentTaken: a document of this id is there, and ``who`` may not read all of it.
        """
        names = [] if reads_everything(who) else self._open.names_of(tenant, collection)
        for name in names:
            with contextlib.suppress(NotFound), self._open.rows(name, document_id) as rows:
                rows.check_may_change(who)

    def put_readers(self, name: str, tenant: str, collection: str, document: IndexedDocument) -> None:
        """Gives chunks that are there (``has_content``) the readers that ``document`` says."""
        with self._open.rows(name, document.document_id, _WRITING, changing=True) as rows:
            rows.put_readers(tenant, collection, document)

    def restrict(self, tenant: str, collection: str, document_id: str, readers: Readers) -> int:
        """Leaves the document only those readers that are among ``readers`` as well; answers how many of its
        chunks have fewer now."""
        num_changed = 0
        for name in self._open.names_of(tenant, collection):
            with (
                contextlib.suppress(NotFound),  # another replica was faster
                self._open.rows(name, document_id, _WRITING, changing=True) as rows,
            ):
                num_changed += rows.change_readers(lambda _, now: both(now, readers))
        return num_changed

    def put(
        self,
        name: str,
        tenant: str,
        collection: str,
        document: IndexedDocument,
        vectors: Vectors,
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
        if not self._open.is_there(name):
            self._open.create(name, self._dim, self._settings)
            log.info("created collection %s", collection)
        loaded = self._open.load(name)
        own = DocumentRows(loaded, document.document_id).expression
        old = f'{own} and revision != "{revision_of(document)}"'
        with contextlib.suppress(NotFound):  # another replica removed the collection meanwhile
            with self._open.using(loaded, _WRITING, changing=True):
                loaded.upsert(rows)
                loaded.delete_where(old)
                loaded.settle()
            if self.is_current(name, tenant, collection, document):
                return
        raise Conflict(
            f"document {document.document_id!r} was changed by another request at the same time; retry"
        )

    def remove(self, tenant: str, collection: str, document_ids: Sequence[str], who: Principal) -> int:
        """Removes the documents' rows and answers how many were searched; a collection that is empty
        afterwards ceases to exist."""
        searched = self.places(tenant, collection).searched
        removed = 0
        for name in self._open.names_of(tenant, collection):
            with contextlib.suppress(NotFound):  # another replica was faster
                num_rows = self._remove(name, document_ids, who)
                removed += num_rows if name == searched else 0
        return removed

    def adopt(self, tenant: str, collection: str) -> int:
        """Drops what other embedders indexed, what is searched last: with that, the configured embedder's
        is searched. Returns how many were dropped; none where the configured embedder has indexed
        nothing."""
        own = self.places(tenant, collection).own
        names = sorted(self._open.names_of(tenant, collection), key=generation_in, reverse=True)
        others = [name for name in names if name != own] if own in names else []
        for name in others:
            with contextlib.suppress(NotFound):
                self._open.drop(name)
        if others:
            log.info("collection %s: now searched by %s", collection, self._embedder)
        return len(others)

    def search_dense(
        self, name: str, vectors: Vectors, limit: int, expression: str, who: Principal
    ) -> list[Ranked]:
        loaded = self._open.load(name)
        where = all_of(loaded.readable_by(who), expression)
        params = {} if self._milvus.embedded else {"ef": max(2 * limit, 64)}
        with self._open.using(loaded, "searching"):
            return loaded.search(vectors.tolist(), "dense", "COSINE", params, limit, where)

    def search_bm25(
        self, name: str, texts: Sequence[str], limit: int, expression: str, who: Principal
    ) -> list[Ranked]:
        loaded = self._open.load(name)
        where = all_of(loaded.readable_by(who), expression)
        with self._open.using(loaded, "searching"):
            if self._milvus.lexical is Lexical.SERVER:
                return loaded.search(list(texts), "sparse", "BM25", {}, limit, where)
            queries = [loaded.lexicon.query_vector(text, partial(may_read, who)) for text in texts]
            found = iter(loaded.search([q for q in queries if q], "sparse", "IP", {}, limit, where))
            return [next(found) if query else [] for query in queries]

    def fetch(self, name: str, row_ids: Sequence[str], who: Principal) -> dict[str, SearchHit]:
        """The rows that (still) exist, and may (still) be read, with score 0."""
        loaded = self._open.load(name)
        with self._open.using(loaded, "reading from the index"):
            rows = loaded.rows(row_ids, OUTPUT_FIELDS)
            return {row["row_id"]: hit_of(row, 0.0) for row in rows if may_read(who, readers_in(row))}

    def close(self) -> None:
        self._milvus.close()

    def _has_any_for(self, who: Principal, name: str) -> bool:
        loaded = self._open.load(name)
        with self._open.using(loaded, "looking up a collection"):
            return loaded.has_any_for(who)

    def _remove(self, name: str, document_ids: Sequence[str], who: Principal) -> int:
        loaded = self._open.load(name)
        with self._open.using(loaded, "removing from the index", changing=True):
            found = [DocumentRows(loaded, document_id) for document_id in document_ids]
            removed = sum(loaded.delete_where(one.expression) for one in found if one.may_change(who))
            if loaded.count() == 0:
                self._open.drop(name)
            else:
                loaded.settle()
        return removed
