"""Defines what a fault of a soak is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

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
