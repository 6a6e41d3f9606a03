"""The auxiliary's KV in memory."""

from __future__ import annotations

from shared.engine.kv.segment import Segment


class Resident:
    """Segments in memory, least recently used first to go. Who uses one keeps it alive meanwhile."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.num_bytes = 0
        self._segments: dict[str, Segment] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def get(self, key: str) -> Segment | None:
        segment = self._segments.pop(key, None)
        if segment is not None:
            self._segments[key] = segment  # most recently used last
        return segment

    def put(self, key: str, segment: Segment) -> None:
        if self.get(key) is None:
            self._segments[key] = segment
            self.num_bytes += segment.num_bytes
        while self.num_bytes > self.capacity_bytes:
            oldest = next(iter(self._segments))
            self.num_bytes -= self._segments.pop(oldest).num_bytes

    def check_invariants(self) -> None:
        assert self.num_bytes == sum(s.num_bytes for s in self._segments.values()) <= self.capacity_bytes
        assert all(segment.whole for segment in self._segments.values())
