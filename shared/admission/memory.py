"""Keeps the requests under way within a budget of memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.errors import Overloaded

BYTES_PER_BYTE = 18
"""What a byte of a request may become while it is served. Token ids take most: 17.2 bytes for one of their
message, as measured."""
_SMALL_BYTES = 4 << 20
_BYTES_PER_BYTE_BEYOND = 4
"""What is larger holds documents, which are worked on one after the other."""
_SHARE = 0.25
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_SOON_S = 1.0


class MemoryBudget:
    """``budget_bytes`` 0: no limit. A request that needs more than the whole budget is served alone: how
    large one may be is for other limits to say."""

    def __init__(self, budget_bytes: int = 0) -> None:
        self._budget_bytes = budget_bytes
        self._held_bytes = 0
        self._num = 0

    @contextmanager
    def held(self, num_bytes: int) -> Iterator[None]:
        """Memory for a request of so many bytes, as long as the context is open.

        Raises:
            Overloaded: there is no room for it beside the others.
        """
        needed = estimate_bytes(num_bytes)
        if self._num and self._budget_bytes and self._held_bytes + needed > self._budget_bytes:
            raise Overloaded(
                f"the requests under way and this one of {num_bytes} bytes would take more memory than the "
                f"{self._budget_bytes} bytes of this service (deployment.memory_bytes); retry in "
                f"{_SOON_S:.1f} s, or send less at once",
                retry_after_s=_SOON_S,
            )
        self._held_bytes += needed
        self._num += 1
        try:
            yield
        finally:
            self._held_bytes -= needed
            self._num -= 1

    def check_invariants(self) -> None:
        assert self._num >= 0
        assert self._held_bytes >= 0
        assert self._num or not self._held_bytes, "memory is held for nobody"


def estimate_bytes(num_bytes: int) -> int:
    """Estimates the memory that a request of so many bytes may take."""
    small = min(num_bytes, _SMALL_BYTES)
    return small * BYTES_PER_BYTE + (num_bytes - small) * _BYTES_PER_BYTE_BEYOND


def default_budget_bytes(cgroup: Path = _CGROUP) -> int:
    """A part of what the machine, or the container, has."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        container = int(cgroup.read_text())
    except (OSError, ValueError):  # no cgroup, or "max"
        container = machine
    return int(min(machine, container) * _SHARE)
