"""Asks a generator that died before it said anything again: nobody has noticed. Afterwards the caller must
know."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from shared.errors import Unavailable
from shared.generation.told import GenerationEvent
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
