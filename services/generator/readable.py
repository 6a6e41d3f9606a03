"""Refuses chunks that are named by what they stand behind, where that is in no document that the caller may
read: whatever is computed behind such a chunk, what it says could be asked for.

Text and token ids are the caller's own. What he may not read and what is not there are told alike.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from services.generator.identified import Identified
from shared.errors import KvquiltError, NotFound
from shared.generation.told import DoneEvent
from shared.kv_stores import ReadableChunks
from shared.principals.principal import Role
from shared.readers import reads_everything
from shared.request import RequestContext

log = logging.getLogger(__name__)


class ReadableParents:
    """``store`` None: none is known here, so nothing stands behind what is only named."""

    def __init__(self, store: ReadableChunks | None) -> None:
        self._store = store

    async def check(self, ctx: RequestContext, asked: Identified) -> None:
        """Also of who reads every document of its tenant: other tenants have chunks, too.

        Raises:
            NotFound: names the chunk.
        """
        if self._store is None or ctx.principal.may(Role.INTERNAL):
            return
        own = {chunk.chunk_id for chunk in (*asked.chunks, *asked.links)}
        named = dict.fromkeys(
            chunk.parent_id
            for chunk in (*asked.chunks, *asked.links)
            if chunk.parent_id and chunk.parent_id not in own
        )
        hidden = set(named).difference(await self._store.readable(ctx, list(named)) if named else ())
        for i, chunk in enumerate(asked.chunks):
            if chunk.parent_id in hidden:
                raise NotFound(
                    f"chunks[{i}].parent_id: no document that you may read has such a chunk; send what "
                    "stands in front of it as its context, or leave it out"
                )

    async def told(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> frozenset[str]:
        """Those of which the caller may know that their KV was there."""
        if self._store is None or reads_everything(ctx.principal):
            return frozenset(chunk_ids)
        return frozenset(await self._store.readable(ctx, list(dict.fromkeys(chunk_ids))))

    async def counted(self, ctx: RequestContext, done: DoneEvent) -> DoneEvent:
        """As it may be told: KV that no document has which the caller may read is counted as if it had not
        been there, whether another document has it or none."""
        counts = done.counts
        if counts is None or self._store is None or reads_everything(ctx.principal):
            return done
        there = [chunk_id for chunk_id, _ in counts.chunks if chunk_id not in counts.lost]
        try:
            told = await self.told(ctx, there) if there else frozenset(there)
        except KvquiltError as error:  # who cannot be asked has nothing
            log.warning("usage tells of no stored KV: %s", error.code)
            told = frozenset()
        shown = counts.without([chunk_id for chunk_id in there if chunk_id not in told])
        return replace(done, usage=replace(done.usage, **shown.of(done.usage.prompt_tokens)))
