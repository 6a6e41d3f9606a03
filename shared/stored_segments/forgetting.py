"""Lets go of resident KV whose chunk was deleted: what is deleted is gone from memory, too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from shared.errors import KvquiltError
from shared.kv_types import ChunkStat
from shared.request import RequestContext

log = logging.getLogger(__name__)
_IDS_PER_CALL = 1000


class Residents(Protocol):
    """An engine's resident chunks."""

    def resident_chunk_ids(self) -> Sequence[str]: ...
    def forget(self, chunk_ids: Sequence[str]) -> None: ...


class Stats(Protocol):
    """The store's front, as far as this goes."""

    async def stat(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[ChunkStat]: ...


class Forgetting:
    """Only what the store was seen to have, and has no more, is forgotten: KV that was never stored, or waits
    to be, stays."""

    def __init__(self, residents: Residents, store: Stats) -> None:
        self._residents, self._store = residents, store
        self._seen: set[str] = set()

    async def forever(
        self, period_s: float, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Not at all where the period is 0."""
        while period_s:
            await sleep(period_s)
            try:
                await self.once()
            except KvquiltError as error:
                log.info("what was deleted is not known now, and is asked for again: %s", error.detail)

    async def once(self) -> None:
        ids = list(self._residents.resident_chunk_ids())
        stored: set[str] = set()
        for begin in range(0, len(ids), _IDS_PER_CALL):
            page = ids[begin : begin + _IDS_PER_CALL]
            stored |= {s.chunk_id for s in await self._store.stat(RequestContext.create(), page) if s.exists}
        gone = [chunk_id for chunk_id in ids if chunk_id in self._seen and chunk_id not in stored]
        self._seen = stored
        if gone:
            self._residents.forget(gone)
            log.info("%d chunks that were deleted are no longer resident", len(gone))
