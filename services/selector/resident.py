"""The auxiliary's KV in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from shared.engine.kv.segment import Segment
from shared.floors import Floors


class Resident:
    """Segments in memory, least recently used first to go. Who uses one keeps it alive meanwhile.
    ``floor_share``: see ``Floors``."""

    def __init__(self, capacity_bytes: int, floor_share: float = 0.0) -> None:
        self.capacity_bytes, self._floors = capacity_bytes, Floors(floor_share)
        self.num_bytes = 0
        self._segments: dict[str, Segment] = {}
        self._tenants: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def get(self, key: str) -> Segment | None:
        segment = self._segments.pop(key, None)
        if segment is not None:
            self._segments[key] = segment  # most recently used last
        return segment

    def put(self, key: str, segment: Segment, tenant: str = "") -> None:
        if self.get(key) is None:
            self._segments[key], self._tenants[key] = segment, tenant
            self._count(tenant, segment.num_bytes)
        for oldest in list(self._segments):
            if self.num_bytes <= self.capacity_bytes:
                return
            if self._tenants[oldest] == tenant or not self._is_kept(oldest):
                self._count(self._tenants.pop(oldest), -self._segments.pop(oldest).num_bytes)

    def forget(self, keys: Iterable[str]) -> None:
        for key in self._segments.keys() & set(keys):
            self._count(self._tenants.pop(key), -self._segments.pop(key).num_bytes)

    def keys(self) -> tuple[str, ...]:
        return tuple(self._segments)

    def check_invariants(self) -> None:
        assert self._tenants.keys() == self._segments.keys()
        of_tenants: Counter[str] = Counter()
        for key, segment in self._segments.items():
            of_tenants[self._tenants[key]] += segment.num_bytes
        self._floors.check_invariants(of_tenants)
        assert self.num_bytes == of_tenants.total()
        assert self.num_bytes <= self.capacity_bytes or all(map(self._is_kept, self._segments))
        assert all(segment.whole for segment in self._segments.values())

    def _is_kept(self, key: str) -> bool:
        return self._floors.keeps(self._tenants[key], self._segments[key].num_bytes, self.capacity_bytes)

    def _count(self, tenant: str, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._floors.count(tenant, num_bytes)
