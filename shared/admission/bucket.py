"""Meters by a token bucket: it fills at a rate up to a size, and whoever takes more than it holds comes
later."""

from __future__ import annotations


class Bucket:
    """``rate``: units per second; ``burst_s``: how long an empty bucket takes to fill. Times are instants of
    one clock, in seconds."""

    def __init__(self, rate: float, burst_s: float, now_s: float) -> None:
        self._rate = rate
        self._size = max(1.0, rate * burst_s)
        self._held, self._at_s = self._size, now_s

    def wait_s(self, now_s: float, units: float = 1.0) -> float:
        """Until so many can be taken; 0: now. What no bucket holds may be taken from a full one."""
        self._fill(now_s)
        return max(0.0, (min(units, self._size) - self._held) / self._rate)

    def take(self, now_s: float, units: float = 1.0) -> None:
        """Even if it does not hold them: what is known only afterwards is owed."""
        self._fill(now_s)
        self._held -= units

    def full(self, now_s: float) -> bool:
        """As a new one would be."""
        self._fill(now_s)
        return self._held >= self._size

    def _fill(self, now_s: float) -> None:
        self._held = min(self._size, self._held + self._rate * max(0.0, now_s - self._at_s))
        self._at_s = max(self._at_s, now_s)
