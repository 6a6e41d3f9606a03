"""Opens collections of Milvus, and keeps them open for as long as they are what they were."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from services.retrieval.collection import Collection
from services.retrieval.document_rows import DocumentRows
from services.retrieval.embedder import EmbedderSettings
from services.retrieval.layout import (
    collection_in,
    create_missing_indexes,
    is_ours,
    properties_of,
    schema_of,
    tenant_prefix,
)
from services.retrieval.milvus import CALL_S, Milvus, translated
from shared.errors import NotFound, Unavailable


class OpenCollections:
    """``lock``: held while collections are listed, opened, made or dropped; milvus-lite opens all that it
    lists, and one that is opened twice overwrites itself."""

    def __init__(self, milvus: Milvus) -> None:
        self._milvus = milvus
        self.lock = threading.RLock()
        self._loaded: dict[str, Collection] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._loaded

    def now(self) -> list[Collection]:
        """Those that are open."""
        return list(self._loaded.values())

    def load(self, name: str) -> Collection:
        with self.lock, translated("opening a collection"):
            if name not in self._loaded:
                create_missing_indexes(self._milvus, name)
                self._loaded[name] = Collection(self._milvus, name)
            return self._loaded[name]

    def create(self, name: str, dim: int, settings: EmbedderSettings | None) -> None:
        """For vectors of ``dim`` numbers by an embedder of these ``settings``, if that is known."""
        with self.lock, translated("creating a collection"):
            self._milvus.client.create_collection(
                name,
                schema=schema_of(self._milvus, dim),
                consistency_level="Strong",
                properties=properties_of(settings) if settings else None,
                timeout=CALL_S,
            )

    def drop(self, name: str) -> None:
        with self.lock, translated("dropping a collection"):
            self.forget(name)
            self._milvus.client.drop_collection(name, timeout=CALL_S)

    def forget(self, name: str) -> None:
        self._loaded.pop(name, None)

    def is_there(self, name: str) -> bool:
        return name in self._loaded or name in self.all_names()

    def names_of(self, tenant: str, collection: str = "") -> list[str]:
        """Milvus' names of the collection (empty: of all of the tenant's), whatever embedder it was made
        with."""
        return [
            name
            for name in self.all_names()
            if name.startswith(tenant_prefix(tenant)) and collection in ("", collection_in(name))
        ]

    def all_names(self) -> list[str]:
        with self.lock, translated("looking up a collection"):
            names: list[str] = self._milvus.client.list_collections(timeout=CALL_S)
        return [name for name in names if is_ours(name)]

    @contextlib.contextmanager
    def using(self, loaded: Collection, doing: str, changing: bool = False) -> Iterator[None]:
        """Milvus' errors as ours. A collection that vanished or is not loaded any more is forgotten, and so
        is one whose change failed midway: its lexicon is in doubt and read anew with the next use."""
        try:
            with translated(doing):
                yield
        except BaseException as error:
            if changing or isinstance(error, (NotFound, Unavailable)):
                self.forget(loaded.name)
            raise

    @contextlib.contextmanager
    def rows(
        self, name: str, document_id: str, doing: str = "looking up a document", changing: bool = False
    ) -> Iterator[DocumentRows]:
        """The document's in the Milvus collection ``name``; settled after changes."""
        loaded = self.load(name)
        with self.using(loaded, doing, changing):
            yield DocumentRows(loaded, document_id)
            if changing:
                loaded.settle()
