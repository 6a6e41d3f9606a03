"""Charges a caller for what its call turns out to cost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from shared.admission.entrance import Entrance
from shared.request import RequestContext

EventT = TypeVar("EventT")


async def charged(
    door: Entrance | None,
    ctx: RequestContext,
    events: AsyncGenerator[EventT, None],
    tokens_of: Callable[[EventT], int],
) -> AsyncGenerator[EventT, None]:
    """``events``, whose tokens are charged to the caller as they become known. Without a door nothing is
    counted."""
    async with aclosing(events):
        async for event in events:
            if door is not None and (tokens := tokens_of(event)):
                door.spend(ctx.principal, tokens)
            yield event
