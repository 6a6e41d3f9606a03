"""What a router knows of replicas by its own decisions, until reports tell it: what it has sent where during
the last seconds is on its way there, and takes time there."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from shared.routing.costs import ChunkKey, ReplicaCost, ReplicaLoad


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


@dataclass(slots=True)
class LoadView:
    """How busy a replica should be: what it said last, what was sent since, and the time that went by.
    ``kept_ms``: how long what was sent counts if the replica says nothing."""

    kept_ms: float
    _ready_ms: float = 0.0
    _loaded_ms: float = 0.0
    _branches: int = 0
    _sent: deque[tuple[float, ReplicaCost, int]] = field(default_factory=deque)

    def told(self, load: ReplicaLoad, now_ms: float) -> None:
        """What was sent before it looked is in what it says."""
        at_ms = now_ms - load.age_ms
        self._ready_ms, self._loaded_ms = at_ms + load.wait_ms, at_ms + load.loading_ms
        self._branches = load.branches
        while self._sent and self._sent[0][0] <= at_ms:
            self._sent.popleft()
        for sent_ms, cost, _ in self._sent:
            self._add(cost, sent_ms)

    def sent(self, cost: ReplicaCost, branches: int, now_ms: float) -> None:
        self._sent.append((now_ms, cost, branches))
        self._add(cost, now_ms)

    def at(self, now_ms: float) -> ReplicaLoad:
        while self._sent and now_ms - self._sent[0][0] > self.kept_ms:
            self._sent.popleft()
        wait_ms, loading_ms = max(0.0, self._ready_ms - now_ms), max(0.0, self._loaded_ms - now_ms)
        return ReplicaLoad(
            wait_ms, loading_ms, self._branches + sum(branches for _, _, branches in self._sent)
        )

    def _add(self, cost: ReplicaCost, sent_ms: float) -> None:
        self._ready_ms = max(self._ready_ms, sent_ms) + cost.prefill_ms
        self._loaded_ms = max(self._loaded_ms, sent_ms) + cost.loaded_ms - cost.backlog_ms
