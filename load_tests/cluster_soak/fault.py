"""Defines what a fault of a soak is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

ASKS, WRITES = "asks", "writes"
"""Kinds of callers."""
DOWN_S = 6.0
"""How long what is away, slow or full stays so."""
Strike = Callable[[], Awaitable[None]]
Told = frozenset[tuple[str, str]]
"""A kind of callers, and the code of an error, each."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``strike`` returns when nothing stands in the way of recovery any more; it raises ``Violation`` where
    the fault was none. ``told``: which errors callers of which kind may be told because of it besides those
    that can be retried."""

    name: str
    strike: Strike
    told: Told = frozenset()


class Restartable(Protocol):
    """A process that comes back with what it had."""

    def stop(self) -> None: ...

    def start(self) -> None: ...


async def down(server: Restartable, meanwhile: Strike | None = None) -> None:
    await asyncio.to_thread(server.stop)
    try:
        if meanwhile is not None:
            await meanwhile()
        await asyncio.sleep(DOWN_S)
    finally:
        await asyncio.to_thread(server.start)
