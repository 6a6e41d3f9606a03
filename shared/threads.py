"""Tells an event loop something from another thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


def call_on(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Has ``loop`` make the call soon; nothing happens where it was closed, as nobody listens any more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *args)
