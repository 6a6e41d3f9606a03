"""Finds the highest rate that holds: grow (or shrink) by a factor until it is enclosed, then bisect."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

Holds = Callable[[float], Awaitable[bool]]


async def highest_rate(
    holds: Holds, start: float, *, growth: float = 2.0, precision: float = 1.15, max_probes: int = 12
) -> float | None:
    """The highest probed rate that ``holds``, once a failing one is known at most ``precision`` times higher
    (or after ``max_probes``). None: none held. The middle of two rates is their geometric mean, since what
    counts is a ratio."""
    good: float | None = None
    bad: float | None = None
    rate = start
    for _ in range(max_probes):
        if await holds(rate):
            good = rate
        else:
            bad = rate
        if good is None:
            rate = rate / growth
        elif bad is None:
            rate = rate * growth
        elif bad <= good * precision:
            break
        else:
            rate = math.sqrt(good * bad)
    return good
