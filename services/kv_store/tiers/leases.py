"""Leases: a chunk whose path was handed out stays where it is for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class Leases:
    """All are equally long, so the first to be given is the first to end. Not thread-safe."""

    def __init__(self, length_s: float, clock: Callable[[], float]) -> None:
        """``clock``: of which only differences count, and which never jumps (``time.monotonic``)."""
        self._length_s, self._clock = length_s, clock
        self._ends: OrderedDict[str, float] = OrderedDict()

    def __contains__(self, chunk_id: str) -> bool:
        return chunk_id in self._ends and self._ends[chunk_id] > self._clock()

    def __len__(self) -> int:
        return len(self._ends)

    def renew(self, chunk_id: str) -> None:
        """From now on. What has ended by now is forgotten."""
        now = self._clock()
        self._ends[chunk_id] = now + self._length_s
        self._ends.move_to_end(chunk_id)
        while self._ends and next(iter(self._ends.values())) <= now:
            self._ends.popitem(last=False)
