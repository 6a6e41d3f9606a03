"""Tells whoever asks for ratings those of answers that he could have been given: their text is made of
documents, and not everybody reads all of them."""

from __future__ import annotations

from collections.abc import Sequence

from shared.feedback import RatedAnswer
from shared.kv_stores import ReadableChunks
from shared.readers import reads_everything
from shared.request import RequestContext

_IDS_PER_CALL = 10_000


async def readable_ratings(
    ctx: RequestContext, ratings: Sequence[RatedAnswer], documents: ReadableChunks | None
) -> Sequence[RatedAnswer]:
    """Those of answers all of whose chunks the caller may read, in documents that are there still.
    ``documents`` None: nobody can say which these are."""
    if reads_everything(ctx.principal):
        return ratings
    if documents is None:
        return []
    ids = list(dict.fromkeys(chunk_id for rated in ratings for chunk_id in rated.chunk_ids))
    readable: set[str] = set()
    for begin in range(0, len(ids), _IDS_PER_CALL):
        readable.update(await documents.readable(ctx, ids[begin : begin + _IDS_PER_CALL]))
    return [rated for rated in ratings if readable.issuperset(rated.chunk_ids)]
