"""Keeps what the holders of one node tell, and answers each router from where it stands.

A notice is a report of chunks with what a replica says of itself beside it. Holders write, routers read as
often as they like, and neither waits for the other. All of it is soft: who loses it asks for snapshots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.errors import InvalidRequest
from shared.routing.costs import ChunkKey
from shared.routing.reports import HeldChunks, LaneName, plain, read_report, told_age_ms

MOST_CHANGES = 16_384
"""Remembered of a lane; a router that has missed more gets a snapshot."""
Known = Mapping[str, tuple[int, int]]
"""By ``lane_key`` the epoch and the number that a router has seen."""


def lane_key(lane: LaneName) -> str:
    return f"{lane.tier.value}:{lane.holder}"


@dataclass(slots=True)
class _Notice:
    """``changed``: by key the number of its last change, in the order of these; ``since_seq``: changes after
    it are all in there. ``beside``: what came with the last report."""

    epoch: int
    seq: int
    since_seq: int
    told_ms: float
    beside: dict[str, object]
    held: set[ChunkKey]
    changed: dict[ChunkKey, int] = field(default_factory=dict)


class NoticeBoard:
    """Instants, ``now_ms``, are milliseconds of one clock that never goes back. ``lease_ms``: a holder that
    is silent for longer is not told of."""

    def __init__(self, lease_ms: float, most_changes: int = MOST_CHANGES) -> None:
        self._lease_ms, self._most_changes = lease_ms, most_changes
        self._notices: dict[LaneName, _Notice] = {}

    def told(self, message: Mapping[str, object], now_ms: float) -> bool:
        """``message``: ``report`` as ``reports.plain`` makes it, and anything beside it. False: it does not
        follow what came before, or makes no sense; a snapshot is needed."""
        report = message.get("report")
        try:
            told = read_report(report if isinstance(report, Mapping) else {})
        except InvalidRequest:
            return False
        beside = {name: value for name, value in message.items() if name != "report"}
        notice = self._notices.get(told.lane)
        if told.base_seq is None:
            whole = _Notice(told.epoch, told.seq, told.seq, now_ms, beside, set(told.added))
            self._notices[told.lane] = whole
            return True
        if notice is None or (notice.epoch, notice.seq) != (told.epoch, told.base_seq):
            return False
        self._change(notice, told)
        notice.seq, notice.told_ms, notice.beside = told.seq, now_ms, beside
        return True

    def since(self, known: Known, now_ms: float) -> list[dict[str, object]]:
        """For one router: of every holder that is not silent what it has not seen, or all where that is not
        known any more. ``age_ms``: how long ago what the holder says of itself was so."""
        for lane in [lane for lane, one in self._notices.items() if now_ms - one.told_ms > self._lease_ms]:
            del self._notices[lane]
        return [
            {
                **notice.beside,
                "report": plain(self._report(lane, notice, known)),
                "age_ms": told_age_ms(notice.beside) + max(0.0, now_ms - notice.told_ms),
            }
            for lane, notice in self._notices.items()
        ]

    def check_invariants(self) -> None:
        for lane, notice in self._notices.items():
            numbers = list(notice.changed.values())
            assert numbers == sorted(numbers), f"{lane}: changes out of order"
            assert all(notice.since_seq < number <= notice.seq for number in numbers), f"{lane}: numbers"
            assert len(numbers) <= self._most_changes, f"{lane}: too many changes"

    def _report(self, lane: LaneName, notice: _Notice, known: Known) -> HeldChunks:
        epoch, base_seq = known.get(lane_key(lane), (None, 0))
        if epoch != notice.epoch or not notice.since_seq <= base_seq <= notice.seq:
            return HeldChunks(lane, notice.epoch, notice.seq, frozenset(notice.held))
        changed = set[ChunkKey]()
        for key, number in reversed(notice.changed.items()):
            if number <= base_seq:
                break
            changed.add(key)
        added = frozenset(changed & notice.held)
        return HeldChunks(lane, notice.epoch, notice.seq, added, frozenset(changed) - added, base_seq)

    def _change(self, notice: _Notice, told: HeldChunks) -> None:
        notice.held |= told.added
        notice.held -= told.removed
        for key in (*told.added, *told.removed):
            notice.changed.pop(key, None)
            notice.changed[key] = told.seq
        while len(notice.changed) > self._most_changes:
            notice.since_seq = max(notice.since_seq, notice.changed.pop(next(iter(notice.changed))))
        # of one report some went and some are left: who stands in front of it gets all
        while notice.changed and next(iter(notice.changed.values())) <= notice.since_seq:
            del notice.changed[next(iter(notice.changed))]
