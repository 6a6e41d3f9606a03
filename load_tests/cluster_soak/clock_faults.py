"""Lets the clock of the day jump."""

from __future__ import annotations

import asyncio

from load_tests.cluster_soak.fault import DOWN_S, Fault, Strike
from load_tests.servers.stepped_clock import SteppedClock

STEP_S = 3600.0
FORTH, BACK = "clock an hour ahead, and right again", "clock an hour behind, and right again"
NAMES = (FORTH, BACK)


def clock_faults(clock: SteppedClock) -> list[Fault]:
    return [Fault(FORTH, _stepping(clock, STEP_S)), Fault(BACK, _stepping(clock, -STEP_S))]


def _stepping(clock: SteppedClock, ahead_s: float) -> Strike:
    """Two steps: there, and back."""

    async def strike() -> None:
        clock.set(ahead_s)
        try:
            await asyncio.sleep(DOWN_S)
        finally:
            clock.set(0.0)

    return strike
