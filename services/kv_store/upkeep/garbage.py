"""Garbage: chunks that no document refers to, that nobody reads, and that have been there for a while.

Whether a chunk may go is decided by references (under the catalog's lock) and leases. Age only spares work: a
chunk that is collected between its Put and its document is computed again, because PutManifest looks whether
it is there. So a clock that jumps costs time at worst.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from services.kv_store.blobs.protocol import Blobs
from shared.errors import InvalidRequest
from shared.kv_reports import CollectedGarbage
from shared.kv_types import ChunkPage, DeletedChunks
from shared.request import RequestContext

log = logging.getLogger(__name__)

CLOCK_BLOB = "clock"


class Shelves(Protocol):
    """All that is stored, in all tiers of all nodes. All raise ``Unavailable`` while a node does not
    answer."""

    async def now_s(self) -> float:
        """By the clock that dates what ``list_page`` tells."""
        ...

    async def list_page(self, ctx: RequestContext, start_after: str = "") -> ChunkPage: ...

    async def needed(self, ctx: RequestContext, chunk_ids: Sequence[str], grace_s: float) -> Collection[str]:
        """Those of which a node has a copy that is younger than ``grace_s``, or that is being read."""
        ...

    async def delete(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> DeletedChunks:
        """Everywhere, unless a document refers to them by now."""
        ...


async def collect(
    ctx: RequestContext, shelves: Shelves, references: Callable[[str], int], grace_s: float, dry_run: bool
) -> CollectedGarbage:
    """One round over everything. ``num_bytes`` counts a chunk once, however many copies go.

    Raises:
        InvalidRequest: ``grace_s`` is no span of time.
    """
    if not 0 <= grace_s < math.inf:
        raise InvalidRequest(f"grace_s: must be a number of seconds that is not negative, got {grace_s:g}")
    num_chunks = num_bytes = num_kept = 0
    now_s = await shelves.now_s()
    after, truncated = "", True
    while truncated:
        ctx.check_deadline("collecting garbage")
        page = await shelves.list_page(ctx, after)
        truncated = page.truncated and bool(page.chunks)
        after = page.chunks[-1].chunk_id if page.chunks else ""
        sizes = {c.chunk_id: c.size_bytes for c in page.chunks if not references(c.chunk_id)}
        needed = young(((c.chunk_id, c.modified_s) for c in page.chunks), now_s, grace_s)
        needed |= set(await shelves.needed(ctx, [c for c in sizes if c not in needed], grace_s))
        doomed = [c for c in sizes if c not in needed]
        if doomed and not dry_run:
            # by a document that came meanwhile
            referenced = set((await shelves.delete(ctx, doomed)).referenced)
            doomed = [c for c in doomed if c not in referenced]
        num_kept += len(needed & sizes.keys())
        num_chunks += len(doomed)
        num_bytes += sum(sizes[c] for c in doomed)
    log.info(
        "garbage: %d chunks of %d bytes %s", num_chunks, num_bytes, "would go" if dry_run else "are gone"
    )
    return CollectedGarbage(num_chunks, num_bytes, num_kept)


def young(modified: Iterable[tuple[str, float]], now_s: float, grace_s: float) -> set[str]:
    """Names that changed within ``grace_s`` before ``now_s``, or after it: both times must be by the keeper's
    own clock."""
    return {name for name, modified_s in modified if now_s - modified_s < grace_s}


def keeper_now_s(blobs: Blobs) -> float:
    """Asks the clock that dates these blobs: it need not be ours."""
    blobs.put(CLOCK_BLOB, b"")
    stat = blobs.stat(CLOCK_BLOB)
    return 0.0 if stat is None else stat.modified_s  # removed meanwhile: everything is young
