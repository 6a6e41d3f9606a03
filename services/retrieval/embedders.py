"""Finds the embedder that made a collection's vectors: the configured one, else another for as long as its
collection is searched."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from services.retrieval.embedder import Embedder, EmbedderSettings
from services.retrieval.layout import is_of
from shared.errors import FailedPrecondition, KvquiltError

log = logging.getLogger(__name__)

Load = Callable[[EmbedderSettings], Embedder]
BEFORE_SETTINGS_WERE_NOTED = EmbedderSettings("minilm")


class Embedders:
    """``load``: for another embedder than ``configured``; None: there can be none. Thread-safe."""

    def __init__(self, configured: Embedder, load: Load | None = None) -> None:
        self.configured = configured
        self._load = load
        self._lock = threading.Lock()
        self._others: dict[EmbedderSettings, Embedder | None] = {}

    def of(
        self, name: str, collection: str, settings_of: Callable[[str], EmbedderSettings | None]
    ) -> Embedder:
        """The embedder of the Milvus collection ``name``; ``settings_of`` reads what it notes of that.

        Raises:
            FailedPrecondition: it cannot be loaded, or has become another.
        """
        if is_of(name, self.configured.identity):
            return self.configured
        with self._lock:
            settings = settings_of(name) or BEFORE_SETTINGS_WERE_NOTED
            if settings not in self._others:
                self._others[settings] = self._loaded(settings)
            found = self._others[settings]
        if found is None or not is_of(name, found.identity):
            raise FailedPrecondition(
                f"collection {collection!r} was indexed with another embedder than "
                f"{self.configured.identity}, which cannot be loaded any more; configure that embedder "
                f"again, or index the collection anew: kvquilt retrieval rebuild -c {collection}"
            )
        return found

    def _loaded(self, settings: EmbedderSettings) -> Embedder | None:
        if self._load is None:
            return None
        try:
            embedder = self._load(settings)
        except KvquiltError as error:
            log.warning("the embedder %s, which made vectors of this index: %s", settings.model, error.detail)
            return None
        log.info("searching with %s as well, until its collections are indexed anew", embedder.identity)
        return embedder
