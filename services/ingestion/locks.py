"""One request at a time per document."""

from __future__ import annotations

import asyncio
import weakref

from shared.request import RequestContext


class DocumentLocks:
    """Requests for one document wait for each other; the last one wins."""

    def __init__(self) -> None:
        self._locks: weakref.WeakValueDictionary[tuple[str, str, str], asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )

    def of(self, ctx: RequestContext, collection: str, document_id: str) -> asyncio.Lock:
        return self._locks.setdefault((ctx.tenant, collection, document_id), asyncio.Lock())

    def __len__(self) -> int:
        """Locks that somebody holds or waits for."""
        return len(self._locks)
