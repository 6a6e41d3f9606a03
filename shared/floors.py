"""Floors of residency: a share of a memory that stays each tenant's when others need room, for what he used
last.

Whoever needs room evicts what is his own, and what others have above their floor. So however much one tenant
asks for, the others keep something, together never more than half of the memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

_LARGEST_FLOORS = 0.5
"""Share of the capacity that all floors take together, at most."""


class Floors:
    """Bytes by tenant. ``share``: of the capacity, what is kept for each; 0: whoever asks last has the
    room."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._bytes_of: Counter[str] = Counter()  # none of 0

    def floor_bytes(self, capacity_bytes: int) -> float:
        """Returns the bytes that tenants keep, each, when others need room."""
        return capacity_bytes * min(self._share, _LARGEST_FLOORS / max(1, len(self._bytes_of)))

    def count(self, tenant: str, num_bytes: int) -> None:
        """``num_bytes`` more, or less."""
        self._bytes_of[tenant] += num_bytes
        if not self._bytes_of[tenant]:
            del self._bytes_of[tenant]

    def keeps(self, tenant: str, num_bytes: int, capacity_bytes: int) -> bool:
        """Whether the tenant would fall below the floor without so much."""
        return self._bytes_of[tenant] - num_bytes < self.floor_bytes(capacity_bytes)

    def check_invariants(self, of_tenants: Mapping[str, int]) -> None:
        """``of_tenants``: bytes, counted anew."""
        assert {t: n for t, n in of_tenants.items() if n} == self._bytes_of, "resident bytes of tenants"
