"""Finds homes for chunks that nobody holds: rendezvous hashing, so that all routers send it to the same
replicas without asking each other, and a replica that comes or goes moves only what is its own.

A chunk that is asked for often has several homes: as many replicas as its questions would keep busy.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from shared.routing.costs import ChunkKey, chunk_key

_MIX = np.uint64(0x9E3779B97F4A7C15)
_REMEMBERED = 16_384
_HALF_LIFE_MS = 10_000.0


class Homes:
    """Replicas by name, those of a chunk in the order of their right to it."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._salts = np.zeros(0, np.uint64)
        self._known: OrderedDict[tuple[ChunkKey, int], tuple[str, ...]] = OrderedDict()

    def set_replicas(self, replica_ids: Iterable[str]) -> None:
        self._names = tuple(replica_ids)
        self._salts = np.array(list(map(chunk_key, self._names)), np.uint64)
        self._known.clear()

    def of(self, key: ChunkKey, count: int) -> tuple[str, ...]:
        """The first ``count`` of them; fewer where there are fewer."""
        known = self._known.get((key, count))
        if known is None:
            weights = (self._salts ^ np.uint64(key)) * _MIX  # wraps around, as a hash may
            weights = (weights ^ weights >> np.uint64(29)) * _MIX
            known = tuple(self._names[i] for i in np.argsort(~weights, kind="stable")[:count].tolist())
            self._known[key, count] = known
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return known


class Heat:
    """Counts how often chunks are asked for: a mean that forgets half of what was in ten seconds. Of the
    chunks that were asked for last; one that is hot is soon asked for again."""

    def __init__(self) -> None:
        self._seen: OrderedDict[ChunkKey, tuple[float, float]] = OrderedDict()  # times, weighted, and when

    def ask(self, key: ChunkKey, now_ms: float) -> float:
        """One more time. How often it is asked for in a second, this one included."""
        times, at_ms = self._seen.pop(key, (0.0, now_ms))
        times = 1.0 + times * math.exp2((at_ms - now_ms) / _HALF_LIFE_MS)
        self._seen[key] = times, now_ms
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return times * math.log(2) / (_HALF_LIFE_MS / 1e3)


def num_homes(rate: float, work_ms: float, most: int) -> int:
    """``rate``: questions per second that ask for a chunk; ``work_ms``: for how long one of them occupies a
    replica. A home is busy with them half of the time at most."""
    return max(1, min(most, math.ceil(2 * rate * work_ms / 1e3)))
