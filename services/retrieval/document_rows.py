"""Says of a document's rows in one collection who may read them, and changes that alone."""

from __future__ import annotations

from collections.abc import Callable

from services.retrieval.collection import Collection
from services.retrieval.filters import TERMS_FIELD, readers_in, with_readers
from services.retrieval.rows import document_key, revision_of, rows_of
from shared.principals.principal import Principal
from shared.readers import Readers, may_read, reads_everything, taken
from shared.search import IndexedDocument

_LOOKED_AT = ["row_id", "revision", TERMS_FIELD]


class DocumentRows:
    """Calls block and raise Milvus' own errors."""

    def __init__(self, collection: Collection, document_id: str) -> None:
        self._collection, self._document_id = collection, document_id
        self.expression = f'document_key == "{document_key(document_id)}"'

    def may_change(self, who: Principal) -> bool:
        """Whether ``who`` may read something of it, or it is not there.

        Raises:
            DocumentTaken: not all of it.
        """
        if reads_everything(who):
            return True
        readable = [may_read(who, readers) for readers in self._readers().values()]
        if any(readable) and not all(readable):
            raise taken(self._document_id)
        return all(readable)

    def check_may_change(self, who: Principal) -> None:
        """
        Raises:
            DocumentTaken: a document of this id is there, and ``who`` may not read all of it.
        """
        if not self.may_change(who):
            raise taken(self._document_id)

    def has_content(self, document: IndexedDocument) -> bool:
        """Whether exactly these chunks are there, whoever may read them."""
        stored = self._collection.rows_where(self.expression, _LOOKED_AT)
        return len(stored) == len(document.chunks) and {row["revision"] for row in stored} <= {
            revision_of(document)
        }

    def has_readers(self, tenant: str, collection: str, document: IndexedDocument) -> bool:
        """Whether the chunks that are there have the readers that ``document`` says."""
        return self._readers() == _readers_of(tenant, collection, document)

    def put_readers(self, tenant: str, collection: str, document: IndexedDocument) -> None:
        """Gives chunks that are there the readers that ``document`` says."""
        told = _readers_of(tenant, collection, document)
        self.change_readers(lambda row_id, readers: told.get(row_id, readers))

    def change_readers(self, changed: Callable[[str, Readers], Readers]) -> int:
        """``changed``: the readers of a row by its id and those it has. Answers how many have others now."""
        rows = self._collection.rows_where(self.expression, self._collection.fields)
        now = [(row, readers_in(row), changed(row["row_id"], readers_in(row))) for row in rows]
        others = [with_readers(row, new) for row, old, new in now if new != old]
        self._collection.upsert(others)
        return len(others)

    def _readers(self) -> dict[str, Readers]:
        rows = self._collection.rows_where(self.expression, _LOOKED_AT)
        return {row["row_id"]: readers_in(row) for row in rows}


def _readers_of(tenant: str, collection: str, document: IndexedDocument) -> dict[str, Readers]:
    return {row["row_id"]: readers_in(row) for row in rows_of(tenant, collection, document)}
