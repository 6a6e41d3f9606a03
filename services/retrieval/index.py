"""The index over chunks in Milvus: one Milvus collection per tenant and collection, one row per chunk.

A tenant's rows are in collections of its own, so no filter stands between tenants and term statistics do not
mix. All calls block; writes come from one thread at a time, reads from any number.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pymilvus import MilvusException

from services.retrieval.embedder import Vectors
from services.retrieval.layout import (
    collection_in,
    create_missing_indexes,
    milvus_name,
    schema_of,
    tenant_prefix,
)
from services.retrieval.lexicon import Lexicon, row_vector
from services.retrieval.milvus import NOT_LOADED, Lexical, Milvus, translated
from services.retrieval.rows import (
    MAX_ROWS_PER_DOCUMENT,
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

MAX_K = 16_384  # Milvus' own limit for one ranking
_LOAD_ATTEMPTS, _LOAD_PAUSE_S = 10, 0.1
_CALL_S = 30.0  # without a limit pymilvus retries for minutes when a server is gone
_ROWS_PER_WRITE = 256
_ROWS_PER_READ = 1024

Ranked = list[tuple[str, float]]
"""Row ids with their scores, best first; larger is better."""


class MilvusIndex:
    def __init__(self, milvus: Milvus, embedder_identity: str, dim: int) -> None:
        self._milvus = milvus
        self._client = milvus.client
        self._embedder = embedder_identity
        self._dim = dim
        self._load_lock = threading.RLock()
        self._lexicons: dict[str, Lexicon] = {}  # of every loaded collection; empty ones unless BM25 is ours

    @property
    def has_bm25(self) -> bool:
        return self._milvus.lexical is not Lexical.NONE

    def version(self) -> str:
        """Asks Milvus, so it also tells whether it answers."""
        with translated("asking for its version"):
            return str(self._client.get_server_version(timeout=_CALL_S))

    def collections(self, tenant: str) -> list[CollectionInfo]:
        with self._load_lock, translated("listing collections"):
            names = sorted(
                name
                for name in self._client.list_collections(timeout=_CALL_S)
                if name.startswith(tenant_prefix(tenant))
            )
            for name in names:
                self._load(name)
            return [CollectionInfo(collection_in(name), self._count(name)) for name in names]

    def documents(self, tenant: str, collection: str) -> IndexedIds:
        """Which documents have rows, whichever embedder made them."""
        names = self._names_of(tenant, collection)
        found: set[str] = set()
        for name in names:
            self._load(name)
            with self._using(name, "listing documents"):
                found.update(document_id_of(row) for row in self._all_rows(name, ["payload"]))
        return IndexedIds(
            tuple(sorted(found)), other_embedder=any(name != self._name(tenant, collection) for name in names)
        )

    def is_current(self, tenant: str, collection: str, document: IndexedDocument) -> bool:
        """Whether exactly these chunks of the document are searchable."""
        name = self._open(tenant, collection)
        if name is None:
            return not document.chunks
        with self._using(name, "looking up a document"):
            stored = self._rows_where(
                name, f'document_key == "{document_key(document.document_id)}"', ["revision"]
            )
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
        name = self._open(tenant, collection) or self._create(tenant, collection)
        with contextlib.suppress(NotFound):  # another replica removed the collection meanwhile
            self._write(name, document, rows)
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

    def _remove(self, name: str, document_ids: Sequence[str]) -> int:
        self._load(name)
        with self._using(name, "removing from the index", changing=True):
            removed = sum(
                self._delete_where(name, f'document_key == "{document_key(d)}"') for d in document_ids
            )
            if self._count(name) == 0:
                self._client.drop_collection(name, timeout=_CALL_S)
                self._lexicons.pop(name, None)
            else:
                self._settle(name)
        return removed

    def search_dense(
        self, tenant: str, collection: str, vectors: Vectors, limit: int, expression: str
    ) -> list[Ranked]:
        name = self._existing(tenant, collection)
        params = {} if self._milvus.embedded else {"ef": max(2 * limit, 64)}
        return self._search(name, vectors.tolist(), "dense", "COSINE", params, limit, expression)

    def search_bm25(
        self, tenant: str, collection: str, texts: Sequence[str], limit: int, expression: str
    ) -> list[Ranked]:
        name = self._existing(tenant, collection)
        if self._milvus.lexical is Lexical.SERVER:
            return self._search(name, list(texts), "sparse", "BM25", {}, limit, expression)
        queries = [self._lexicons[name].query_vector(text) for text in texts]
        found = iter(self._search(name, [q for q in queries if q], "sparse", "IP", {}, limit, expression))
        return [next(found) if query else [] for query in queries]

    def fetch(self, tenant: str, collection: str, row_ids: Sequence[str]) -> dict[str, SearchHit]:
        """The rows that (still) exist, with score 0."""
        name = self._existing(tenant, collection)
        with self._using(name, "reading from the index"):
            rows = [
                row
                for begin in range(0, len(row_ids), _ROWS_PER_READ)
                for row in self._client.get(
                    name,
                    ids=list(row_ids[begin : begin + _ROWS_PER_READ]),
                    output_fields=OUTPUT_FIELDS,
                    timeout=_CALL_S,
                )
            ]
        return {row["row_id"]: hit_of(row, 0.0) for row in rows}

    def close(self) -> None:
        self._milvus.close()

    def _search(
        self,
        name: str,
        data: list[Any],
        field: str,
        metric: str,
        params: dict[str, Any],
        limit: int,
        expression: str,
    ) -> list[Ranked]:
        if not data:
            return []
        with self._using(name, "searching"):
            found = self._client.search(
                name,
                data=data,
                anns_field=field,
                search_params={"metric_type": metric, "params": params},
                limit=min(limit, MAX_K),
                filter=expression,
                timeout=_CALL_S,
            )
        return [list(zip(map(str, hits.ids), map(float, hits.distances), strict=True)) for hits in found]

    def _existing(self, tenant: str, collection: str) -> str:
        name = self._open(tenant, collection)
        if name is None:
            known = [info.name for info in self.collections(tenant)]
            there = (
                f"there are: {', '.join(known[:20])}{', …' if len(known) > 20 else ''}"
                if known
                else "there is none yet"
            )
            raise NotFound(f"collection {collection!r} does not exist; {there}")
        return name

    def _open(self, tenant: str, collection: str) -> str | None:
        """Milvus' name of the collection, ready for use; None if it does not exist."""
        name = self._name(tenant, collection)
        # also while looking: milvus-lite opens a collection twice when it is listed while it is loaded
        with self._load_lock:
            if name in self._lexicons:
                return name
            names = self._names_of(tenant, collection)
            if not names:
                return None
            if name not in names:
                raise FailedPrecondition(
                    f"collection {collection!r} was indexed with another embedder than {self._embedder}; "
                    "configure that embedder again, or index the collection anew: kvquilt retrieval "
                    f"rebuild -c {collection}"
                )
            self._load(name)
        return name

    def _load(self, name: str) -> None:
        with self._load_lock, translated("opening a collection"):
            if name not in self._lexicons:
                create_missing_indexes(self._milvus, name, _CALL_S)
                self._lexicons[name] = self._loaded_lexicon(name)

    def _loaded_lexicon(self, name: str) -> Lexicon:
        """Loads the collection and reads its terms; once more when another call opened it in between and
        undid the loading."""
        for attempt in range(_LOAD_ATTEMPTS):
            self._client.load_collection(name, timeout=_CALL_S)
            lexicon = Lexicon()
            try:
                if self._milvus.lexical is Lexical.OWN:
                    lexicon.add(row["sparse"] for row in self._all_rows(name, ["sparse"]))
                return lexicon
            except MilvusException as error:
                if error.code != NOT_LOADED or attempt == _LOAD_ATTEMPTS - 1:
                    raise
                time.sleep(_LOAD_PAUSE_S)
        raise AssertionError("the loop returns or raises")

    def _create(self, tenant: str, collection: str) -> str:
        name = self._name(tenant, collection)
        with translated("creating a collection"):
            self._client.create_collection(
                name, schema=schema_of(self._milvus, self._dim), consistency_level="Strong", timeout=_CALL_S
            )
        log.info("created collection %s", collection)
        self._load(name)
        return name

    def _name(self, tenant: str, collection: str) -> str:
        return milvus_name(tenant, collection, self._embedder)

    def _names_of(self, tenant: str, collection: str) -> list[str]:
        """Whatever embedder it was made with."""
        with translated("looking up a collection"):
            names: list[str] = self._client.list_collections(timeout=_CALL_S)
        return [
            name
            for name in names
            if name.startswith(tenant_prefix(tenant)) and collection_in(name) == collection
        ]

    @contextlib.contextmanager
    def _using(self, name: str, doing: str, changing: bool = False) -> Iterator[None]:
        """Milvus' errors as ours. A collection that vanished or is not loaded any more is forgotten, and so
        is one whose change failed midway: its lexicon is in doubt and read anew with the next use."""
        try:
            with translated(doing):
                yield
        except BaseException as error:
            if changing or isinstance(error, (NotFound, Unavailable)):
                self._lexicons.pop(name, None)
            raise

    def _write(self, name: str, document: IndexedDocument, rows: list[dict[str, Any]]) -> None:
        old = (
            f'document_key == "{document_key(document.document_id)}" and revision != '
            f'"{revision_of(document)}"'
        )
        with self._using(name, "writing to the index", changing=True):
            for begin in range(0, len(rows), _ROWS_PER_WRITE):
                self._upsert(name, rows[begin : begin + _ROWS_PER_WRITE])
            self._delete_where(name, old)
            self._settle(name)

    def _upsert(self, name: str, rows: list[dict[str, Any]]) -> None:
        ids = [row["row_id"] for row in rows]
        self._change_lexicon(
            name,
            lambda: self._client.get(name, ids=ids, output_fields=["sparse"], timeout=_CALL_S),
            Lexicon.remove,
        )
        self._client.upsert(name, rows, timeout=_CALL_S)
        self._change_lexicon(name, lambda: rows, Lexicon.add)

    def _delete_where(self, name: str, expression: str) -> int:
        doomed = self._rows_where(name, expression, ["row_id"])
        if doomed:
            self._change_lexicon(name, lambda: self._rows_where(name, expression, ["sparse"]), Lexicon.remove)
            self._client.delete(name, filter=expression, timeout=_CALL_S)
        return len(doomed)

    def _change_lexicon(
        self,
        name: str,
        rows: Callable[[], list[Any]],
        change: Callable[[Lexicon, Iterator[dict[int, float]]], None],
    ) -> None:
        if self._milvus.lexical is Lexical.OWN and name in self._lexicons:
            change(self._lexicons[name], (row["sparse"] for row in rows()))

    def _settle(self, name: str) -> None:
        # The embedded Milvus scans unflushed rows in Python; a server flushes by itself, and limits how often
        # one may ask.
        if self._milvus.embedded:
            self._client.flush(name, timeout=_CALL_S)

    def _rows_where(self, name: str, expression: str, fields: list[str]) -> list[dict[str, Any]]:
        """Rows of one document."""
        rows: list[dict[str, Any]] = self._client.query(
            name, filter=expression, output_fields=fields, limit=MAX_ROWS_PER_DOCUMENT, timeout=_CALL_S
        )
        return rows

    def _all_rows(self, name: str, fields: list[str]) -> Iterator[dict[str, Any]]:
        pages = self._client.query_iterator(
            name, batch_size=_ROWS_PER_READ, output_fields=fields, timeout=_CALL_S
        )
        try:
            while page := pages.next():
                yield from page
        finally:
            pages.close()

    def _count(self, name: str) -> int:
        return int(
            self._client.query(name, filter="", output_fields=["count(*)"], timeout=_CALL_S)[0]["count(*)"]
        )
