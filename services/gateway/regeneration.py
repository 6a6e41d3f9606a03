"""A generator that dies before it said anything is asked once more: nobody has noticed. Afterwards the caller
must know."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from shared.errors import Unavailable
from shared.generation.told import GenerationEvent
from shared.request import RequestContext

log = logging.getLogger(__name__)


async def generate_with_retry(
    start: Callable[[], AsyncGenerator[GenerationEvent, None]], ctx: RequestContext
) -> AsyncGenerator[GenerationEvent, None]:
    """The events of ``start()``; begun anew once if it fails as unavailable before its first event.

    Raises:
        Unavailable: it failed twice, or in mid-answer.
    """
    for attempt in (1, 2):
        begun = False
        try:
            async with aclosing(start()) as events:
                async for event in events:
                    begun = True
                    yield event
                return
        except Unavailable as error:
            if begun:
                raise Unavailable(
                    "the generator died while answering; the text so far is not an answer; retry"
                ) from error
            if attempt == 2:
                raise
            ctx.check_deadline("starting the generation anew")
            log.warning("generation failed before its first token; trying once more: %s", error.detail)
