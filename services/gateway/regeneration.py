"""Asks a generator again that said nothing yet: one that died, and one that does not know what found chunks
stand behind. Nobody has noticed. Afterwards the caller must know."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from shared.errors import NotFound, Unavailable
from shared.generation.orders import GenerationOrder
from shared.generation.pieces import Conditioned, ids_of, plain_of
from shared.generation.told import DoneEvent, GenerationEvent
from shared.kv_types import KvContext
from shared.patience import RetryPauses, patient_stream
from shared.request import RequestContext


async def generate_with_retry(
    start: Callable[[], AsyncGenerator[GenerationEvent, None]], ctx: RequestContext
) -> AsyncGenerator[GenerationEvent, None]:
    """The events of ``start()``; begun anew while it fails as unavailable before its first event.

    Raises:
        Unavailable: it still failed shortly before the deadline, or in mid-answer.
    """
    begun = False
    pauses = RetryPauses(ctx.remaining_s, "generating")
    try:
        async with aclosing(patient_stream(pauses, start)) as events:
            async for event in events:
                begun = True
                yield event
    except Unavailable as error:
        if not begun:
            raise
        raise Unavailable(
            "the generator died while answering; the text so far is not an answer; retry"
        ) from error


async def generate_or_alone(
    generate: Callable[[GenerationOrder], AsyncGenerator[GenerationEvent, None]],
    order: GenerationOrder,
    ctx: RequestContext,
) -> AsyncGenerator[GenerationEvent, None]:
    """The events of ``order``. Chunks are found for as long as the index has them, and no document may have
    what they stand behind any more: it is being replaced, or was deleted just now. Then they are used alone,
    and usage says so."""
    begun = False
    try:
        async with aclosing(generate_with_retry(lambda: generate(order), ctx)) as events:
            async for event in events:
                begun = True
                yield event
        return
    except NotFound:
        behind = [piece for piece in order.chunks if isinstance(piece, Conditioned) and piece.parent_id]
        if begun or not behind:
            raise
    chunks = tuple(map(plain_of, order.chunks))
    alone = dataclasses.replace(order, chunks=chunks, kv_context=KvContext.NONE, chunk_ids=())
    note = (
        f"what {len(behind)} of {len(chunks)} chunks stand behind is in no document any more, so all were "
        "read alone: documents are being changed; if that lasts, ingest them again"
    )
    async with aclosing(generate_with_retry(lambda: generate(alone), ctx)) as events:
        async for event in events:
            if isinstance(event, DoneEvent):
                usage = dataclasses.replace(
                    event.usage,
                    isolated_tokens=sum(len(ids_of(piece)) for piece in behind),
                    note="; ".join(filter(None, (event.usage.note, note))),
                )
                event = dataclasses.replace(event, usage=usage)
            yield event
