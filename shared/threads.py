"""Tells an event loop something from other threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

EventT = TypeVar("EventT")


def call_on(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Has ``loop`` make the call soon; nothing happens where it was closed, as nobody listens any more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *args)


async def events_of(
    start: Callable[[Callable[[object], None]], None], num_events: int, kind: type[EventT]
) -> list[EventT]:
    """So many events of ``kind``, of what the threads tell that ``start`` sets to work."""
    loop, events = asyncio.get_running_loop(), asyncio.Queue[EventT]()

    def tell(event: object) -> None:
        if isinstance(event, kind):
            call_on(loop, events.put_nowait, event)

    start(tell)
    return [await events.get() for _ in range(num_events)]
