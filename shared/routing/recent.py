"""Remembers what a router knows of replicas by its own decisions, until reports tell it: what it has sent
where during the last seconds is on its way there, and takes time there."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from shared.routing.costs import MOST_MS, ChunkKey, ReplicaCost, ReplicaLoad


@dataclass(frozen=True, slots=True)
class _Sent:
    at_ms: float
    slot: int
    keys: tuple[ChunkKey, ...]


class RecentDecisions:
    """Holders by bits, as in ``residency``. ``kept_ms``: how long a decision counts."""

    def __init__(self, kept_ms: float) -> None:
        self._kept_ms = kept_ms
        self._sent: deque[_Sent] = deque()
        self._times: Counter[tuple[ChunkKey, int]] = Counter()
        self._masks: dict[ChunkKey, int] = {}

    def holders(self, key: ChunkKey) -> int:
        return self._masks.get(key, 0)

    def send(self, slot: int, keys: Iterable[ChunkKey], now_ms: float) -> None:
        sent = _Sent(now_ms, slot, tuple(set(keys)))
        self._sent.append(sent)
        for key in sent.keys:
            self._times[key, slot] += 1
            self._masks[key] = self._masks.get(key, 0) | 1 << slot

    def expire(self, now_ms: float) -> None:
        while self._sent and now_ms - self._sent[0].at_ms > self._kept_ms:
            self._forget(self._sent.popleft())

    def leave(self, slot: int) -> None:
        """Nothing is on its way there any more."""
        gone = [sent for sent in self._sent if sent.slot == slot]
        self._sent = deque(sent for sent in self._sent if sent.slot != slot)
        for sent in gone:
            self._forget(sent)

    def check_invariants(self) -> None:
        times = Counter((key, sent.slot) for sent in self._sent for key in sent.keys)
        assert times == self._times, "times sent"
        masks: dict[ChunkKey, int] = {}
        for key, slot in times:
            masks[key] = masks.get(key, 0) | 1 << slot
        assert masks == self._masks, "holders"

    def _forget(self, sent: _Sent) -> None:
        for key in sent.keys:
            self._times[key, sent.slot] -= 1
            if self._times[key, sent.slot]:
                continue
            del self._times[key, sent.slot]
            if left := self._masks[key] & ~(1 << sent.slot):
                self._masks[key] = left
            else:
                del self._masks[key]


@dataclass(slots=True, weakref_slot=True, eq=False)
class Backlog:
    """Estimates the length of one queue, an engine's or a node's links': what was said of it last, what was
    sent there since, and the time that went by. ``kept_ms``: how long what was sent counts if nothing is
    said; ``lease_ms``: how long what was said does."""

    kept_ms: float
    lease_ms: float
    _free_ms: float = 0.0
    _as_of_ms: float | None = None  # when it was as was said
    _sent: deque[tuple[float, float]] = field(default_factory=deque)

    def told(self, left_ms: float, at_ms: float) -> bool:
        """Takes a report, in which is all that was sent before ``at_ms``. False: what was said of a later
        instant is believed rather."""
        if self._as_of_ms is not None and at_ms < self._as_of_ms:
            return False
        while self._sent and self._sent[0][0] <= at_ms:
            self._sent.popleft()
        self._begin(at_ms + left_ms)
        self._as_of_ms = at_ms
        return True

    def send(self, takes_ms: float, now_ms: float) -> None:
        self._sent.append((now_ms, takes_ms))
        self._free_ms = max(self._free_ms, now_ms) + takes_ms

    def left(self, now_ms: float) -> float:
        while self._sent and now_ms - self._sent[0][0] > self.kept_ms:
            self._sent.popleft()
        if self._as_of_ms is not None and now_ms - self._as_of_ms > self.lease_ms:
            self._begin(0.0)
            self._as_of_ms = None
        return min(max(0.0, self._free_ms - now_ms), MOST_MS)

    def _begin(self, free_ms: float) -> None:
        self._free_ms = free_ms
        for sent_ms, takes_ms in self._sent:
            self._free_ms = max(self._free_ms, sent_ms) + takes_ms


@dataclass(slots=True)
class LoadView:
    """Estimates how busy a replica is. ``links``: its node's, shared with the other replicas there."""

    engine: Backlog
    links: Backlog
    _branches: int = 0
    _branches_ms: float = -MOST_MS  # when it said so
    _sent: deque[tuple[float, int]] = field(default_factory=deque)

    def told(self, load: ReplicaLoad, now_ms: float) -> None:
        at_ms = now_ms - load.age_ms
        self.links.told(load.loading_ms, at_ms)
        if self.engine.told(load.wait_ms, at_ms):
            self._branches, self._branches_ms = load.branches, at_ms
            while self._sent and self._sent[0][0] <= at_ms:
                self._sent.popleft()

    def sent(self, cost: ReplicaCost, branches: int, now_ms: float) -> None:
        self.engine.send(cost.prefill_ms, now_ms)
        self.links.send(cost.loads_ms, now_ms)
        self._sent.append((now_ms, branches))

    def at(self, now_ms: float) -> ReplicaLoad:
        while self._sent and now_ms - self._sent[0][0] > self.engine.kept_ms:
            self._sent.popleft()
        if now_ms - self._branches_ms > self.engine.lease_ms:
            self._branches = 0
        branches = self._branches + sum(branches for _, branches in self._sent)
        return ReplicaLoad(self.engine.left(now_ms), self.links.left(now_ms), branches)
