"""One collection of Milvus, loaded: its rows and, where BM25 is ours, the lexicon over them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from pymilvus import MilvusException

from services.retrieval.filters import TERMS_FIELD, readable_by, readers_in
from services.retrieval.lexicon import Lexicon, LexiconRow
from services.retrieval.milvus import CALL_S, NOT_LOADED, Lexical, Milvus
from shared.indexable import MAX_ROWS_PER_DOCUMENT
from shared.principals.principal import Principal
from shared.readers import may_read, reads_everything

MAX_K = 16_384  # Milvus' own limit for one ranking
_LOAD_ATTEMPTS, _LOAD_PAUSE_S = 10, 0.1
_ROWS_PER_WRITE = 256
_ROWS_PER_READ = 1024
_COUNTED = ["sparse", TERMS_FIELD]  # by the lexicon

Row = dict[str, Any]
Ranked = list[tuple[str, float]]
"""Row ids with their scores, best first; larger is better."""


class Collection:
    """Calls block and raise Milvus' own errors. ``lexicon`` is empty unless BM25 is ours. After a change that
    failed midway it is in doubt, and the collection must be loaded anew."""

    def __init__(self, milvus: Milvus, name: str) -> None:
        self._client, self._embedded, self.name = milvus.client, milvus.embedded, name
        self._keeps_lexicon = milvus.lexical is Lexical.OWN
        self.lexicon = self._load()

    def rows_where(self, expression: str, fields: list[str]) -> list[Row]:
        """Rows of one document."""
        rows: list[Row] = self._client.query(
            self.name, filter=expression, output_fields=fields, limit=MAX_ROWS_PER_DOCUMENT, timeout=CALL_S
        )
        return rows

    def all_rows(self, fields: list[str]) -> Iterator[Row]:
        pages = self._client.query_iterator(
            self.name, batch_size=_ROWS_PER_READ, output_fields=fields, timeout=CALL_S
        )
        try:
            while page := pages.next():
                yield from page
        finally:
            pages.close()

    def rows(self, row_ids: Sequence[str], fields: list[str]) -> Iterator[Row]:
        """Those that (still) exist."""
        for begin in range(0, len(row_ids), _ROWS_PER_READ):
            ids = list(row_ids[begin : begin + _ROWS_PER_READ])
            yield from self._client.get(self.name, ids=ids, output_fields=fields, timeout=CALL_S)

    def readable_by(self, principal: Principal) -> str:
        """The expression for rows that ``principal`` may read; empty: for all that there are. Filtering costs
        more than searching, so it is left out where it would leave nothing out."""
        if self._keeps_lexicon and all(may_read(principal, readers) for readers in self.lexicon.readers):
            return ""
        return readable_by(principal)

    def has_any_for(self, principal: Principal) -> bool:
        """Whether there is a row that ``principal`` may read."""
        if reads_everything(principal):
            return True
        if self._keeps_lexicon:
            return any(may_read(principal, readers) for readers in self.lexicon.readers)
        where = readable_by(principal)
        found = self._client.query(self.name, filter=where, output_fields=["row_id"], limit=1, timeout=CALL_S)
        return bool(found)

    def count(self, expression: str = "") -> int:
        (row,) = self._client.query(self.name, filter=expression, output_fields=["count(*)"], timeout=CALL_S)
        return int(row["count(*)"])

    def search(
        self, data: list[Any], field: str, metric: str, params: Row, limit: int, expression: str
    ) -> list[Ranked]:
        """A ranking for each of ``data``."""
        if not data:
            return []
        found = self._client.search(
            self.name,
            data=data,
            anns_field=field,
            search_params={"metric_type": metric, "params": params},
            limit=min(limit, MAX_K),
            filter=expression,
            timeout=CALL_S,
        )
        return [list(zip(map(str, hits.ids), map(float, hits.distances), strict=True)) for hits in found]

    def upsert(self, rows: Sequence[Row]) -> None:
        for begin in range(0, len(rows), _ROWS_PER_WRITE):
            some = rows[begin : begin + _ROWS_PER_WRITE]
            if self._keeps_lexicon:
                replaced = self.rows([row["row_id"] for row in some], _COUNTED)
                self.lexicon.remove(map(_counted, list(replaced)))
            self._client.upsert(self.name, some, timeout=CALL_S)
            if self._keeps_lexicon:
                self.lexicon.add(map(_counted, some))

    def delete_where(self, expression: str) -> int:
        """Rows of one document; answers how many."""
        doomed = self.rows_where(expression, _COUNTED if self._keeps_lexicon else ["row_id"])
        if doomed:
            if self._keeps_lexicon:
                self.lexicon.remove(map(_counted, doomed))
            self._client.delete(self.name, filter=expression, timeout=CALL_S)
        return len(doomed)

    def settle(self) -> None:
        """After changes."""
        # The embedded Milvus scans unflushed rows in Python; a server flushes by itself, and limits how often
        # one may ask.
        if self._embedded:
            self._client.flush(self.name, timeout=CALL_S)

    @property
    def fields(self) -> list[str]:
        """Those of a row that are not made of others."""
        fields = ["row_id", "document_key", "revision", TERMS_FIELD, "payload", "content", "dense"]
        return [*fields, "sparse"] if self._keeps_lexicon else fields

    def _load(self) -> Lexicon:
        """Its terms; once more when another call opened it in between and undid the loading."""
        for attempt in range(_LOAD_ATTEMPTS):
            self._client.load_collection(self.name, timeout=CALL_S)
            lexicon = Lexicon()
            try:
                if self._keeps_lexicon:
                    lexicon.add(map(_counted, self.all_rows(_COUNTED)))
                return lexicon
            except MilvusException as error:
                if error.code != NOT_LOADED or attempt == _LOAD_ATTEMPTS - 1:
                    raise
                time.sleep(_LOAD_PAUSE_S)
        raise AssertionError("the loop returns or raises")


def _counted(row: Row) -> LexiconRow:
    return readers_in(row), row["sparse"]
