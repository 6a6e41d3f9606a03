"""Tells the KV store which chunks the generator will ask for. An answer neither waits for this nor depends on
it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from services.gateway.ports import ChunkFetcher
from services.gateway.tracing import PREFETCHING
from shared.errors import KvquiltError
from shared.request import RequestContext
from shared.tracing import names
from shared.tracing.spans import span

log = logging.getLogger(__name__)

_DEADLINE_S = 2.0
_MAX_IN_FLIGHT = 64


class Prefetching:
    """Fire and forget. ``fetcher`` None: nothing is told. Beyond ``max_in_flight`` unanswered calls (the
    store hangs), likewise."""

    def __init__(self, fetcher: ChunkFetcher | None, max_in_flight: int = _MAX_IN_FLIGHT) -> None:
        self._fetcher = fetcher
        self._max_in_flight = max_in_flight
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop alone would not keep them alive

    def begin(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> None:
        if self._fetcher is None or not chunk_ids or len(self._tasks) >= self._max_in_flight:
            return
        own = ctx.lasting(_DEADLINE_S)
        task = asyncio.create_task(self._fetch(self._fetcher, own, tuple(chunk_ids)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch(self, fetcher: ChunkFetcher, ctx: RequestContext, chunk_ids: Sequence[str]) -> None:
        try:
            with span(ctx, PREFETCHING, {names.NUM_CHUNKS: len(chunk_ids)}) as stage:
                async with asyncio.timeout(ctx.remaining_s):
                    await fetcher.prefetch(stage.ctx, chunk_ids)
        except (KvquiltError, TimeoutError) as error:
            why = str(error) or "no answer in time"
            log.info("%d chunks could not be asked for in advance: %s", len(chunk_ids), why)
        except Exception:
            log.exception("%d chunks could not be asked for in advance", len(chunk_ids))
