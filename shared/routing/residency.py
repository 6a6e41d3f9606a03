"""A router's view of who holds what, by the reports that reached it.

Holders of a chunk are the bits of one number, a bit (``slot``) per replica, so that a thousand of them cost a
few operations. What a node holds counts for every replica on it.

A lane counts while its reports follow each other and its lease lasts. When a report is missing, wrong or
late, the lane is retired: its keys are kept and hidden, until a snapshot says which of them are true. So a
view is older than the truth, but never mixed up; what it costs is a load that nobody expected.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from shared.routing.costs import ChunkKey, Tier
from shared.routing.reports import HELD_TIERS, MOST_HELD, HeldChunks, LaneName, ReportOutcome


@dataclass(slots=True)
class _LaneView:
    """``mask``: the slots under which its keys are marked; ``present``: those of replicas that there are, for
    which it counts. ``live``: it counts now."""

    mask: int
    present: int
    epoch: int = 0
    seq: int = 0
    live: bool = False
    keys: set[ChunkKey] = field(default_factory=set)


class Residency:
    """``lease_ms``: how long a lane counts after a report. ``most_keys``: of a lane; what it holds beyond
    them is not known, which costs, and breaks nothing."""

    def __init__(self, lease_ms: float, most_keys: int = MOST_HELD) -> None:
        self._lease_ms, self._most_keys = lease_ms, most_keys
        self._slots: dict[str, int] = {}
        self._node_of: dict[str, str] = {}
        self._lanes: dict[LaneName, _LaneView] = {}
        self._heard: OrderedDict[LaneName, float] = OrderedDict()  # when, of live lanes; the latest last
        self._masks: dict[Tier, dict[ChunkKey, int]] = {tier: {} for tier in HELD_TIERS}
        self._live: dict[Tier, int] = dict.fromkeys(HELD_TIERS, 0)

    @property
    def any_live(self) -> bool:
        return any(self._live.values())

    @property
    def num_keys(self) -> int:
        """Of all lanes, each counted where it is held."""
        return sum(len(lane.keys) for lane in self._lanes.values())

    def holders(self, tier: Tier, key: ChunkKey) -> int:
        """A bit per replica that is told to have it there."""
        return self._masks[tier].get(key, 0) & self._live[tier]

    def join(self, replica_id: str, node_id: str, slot: int) -> None:
        """A replica that is new here, under a bit that nobody has: best under one that ``vacant`` names."""
        bit = 1 << slot
        self._slots[replica_id], self._node_of[replica_id] = slot, node_id
        self._lanes.setdefault(LaneName(replica_id, Tier.RESIDENT), _LaneView(bit, bit))
        for name in _node_lanes(node_id):
            lane = self._lanes.setdefault(name, _LaneView(0, 0))
            if not lane.mask & bit:
                lane.mask |= bit
                self._mark(name.tier, lane.keys, bit)
            lane.present |= bit
            if lane.live:
                self._live[name.tier] |= bit

    def leave(self, replica_id: str) -> None:
        """Forgets the replica; what its node holds stays marked under its bit while others are there, for the
        next one on that node: it may be as much as 65,536 keys, and replicas are restarted one after the
        other."""
        node_id, slot = self._node_of.pop(replica_id), self._slots.pop(replica_id)
        for name in (LaneName(replica_id, Tier.RESIDENT), *_node_lanes(node_id)):
            lane = self._lanes[name]
            lane.present &= ~(1 << slot)
            self._live[name.tier] &= ~(1 << slot)
            if not lane.present:
                self._unmark(name.tier, lane.keys, lane.mask)
                del self._lanes[name]
                self._heard.pop(name, None)

    def vacant(self, node_id: str) -> int:
        """Bits of replicas that have left this node, under which its keys are marked; no other node's replica
        may have one."""
        lane = self._lanes.get(next(_node_lanes(node_id)))
        return 0 if lane is None else lane.mask & ~lane.present

    def apply(self, report: HeldChunks, now_ms: float) -> ReportOutcome:
        lane = self._lanes.get(report.lane)
        if lane is None:
            return ReportOutcome.UNKNOWN
        self.expire(now_ms)
        if lane.live and _is_old(report, lane):
            return ReportOutcome.OLD
        if report.base_seq is None:
            self._replace(report, lane)
        elif not lane.live or report.epoch != lane.epoch or report.base_seq > lane.seq:
            self.retire(report.lane)
            return ReportOutcome.SNAPSHOT_NEEDED
        else:
            self._change(report, lane)
        lane.epoch, lane.seq = report.epoch, report.seq
        self._heard[report.lane] = now_ms
        self._heard.move_to_end(report.lane)
        return ReportOutcome.APPLIED

    def retire(self, name: LaneName) -> None:
        """It is not believed until a snapshot comes."""
        if (lane := self._lanes.get(name)) is not None:
            lane.live = False
            self._live[name.tier] &= ~lane.mask
            self._heard.pop(name, None)

    def expire(self, now_ms: float) -> None:
        """Retires what was not heard of for longer than a lease."""
        while self._heard:
            name = next(iter(self._heard))
            if now_ms - self._heard[name] <= self._lease_ms:
                return
            self.retire(name)

    def contradict(self, replica_id: str, keys: Iterable[ChunkKey]) -> None:
        """The replica did not have them. It has them now, or soon, and tells so."""
        lane = self._lanes.get(LaneName(replica_id, Tier.RESIDENT))
        if lane is not None:
            gone = lane.keys.intersection(keys)
            lane.keys -= gone
            self._unmark(Tier.RESIDENT, gone, lane.mask)

    def check_invariants(self) -> None:
        for tier in HELD_TIERS:
            told: dict[ChunkKey, int] = {}
            live = 0
            for name, lane in self._lanes.items():
                assert lane.live == (name in self._heard), f"{name}: its lease"
                assert lane.present, f"{name}: a lane of nobody"
                assert not lane.present & ~lane.mask, f"{name}: not marked for all"
                if name.tier is tier:
                    live |= lane.present if lane.live else 0
                    for key in lane.keys:
                        told[key] = told.get(key, 0) | lane.mask
            assert told == self._masks[tier], f"{tier}: the index is not what the lanes say"
            assert live == self._live[tier], f"{tier}: live lanes"

    def _replace(self, report: HeldChunks, lane: _LaneView) -> None:
        tier = report.lane.tier
        keys = set(_first(report.added, self._most_keys))
        self._unmark(tier, lane.keys - keys, lane.mask)
        self._mark(tier, keys - lane.keys, lane.mask)
        lane.keys, lane.live = keys, True
        self._live[tier] |= lane.present

    def _change(self, report: HeldChunks, lane: _LaneView) -> None:
        gone = report.removed & lane.keys
        lane.keys -= gone
        self._unmark(report.lane.tier, gone, lane.mask)
        new = set(_first(report.added - lane.keys, self._most_keys - len(lane.keys)))
        lane.keys |= new
        self._mark(report.lane.tier, new, lane.mask)

    def _mark(self, tier: Tier, keys: Iterable[ChunkKey], mask: int) -> None:
        masks = self._masks[tier]
        for key in keys:
            masks[key] = masks.get(key, 0) | mask

    def _unmark(self, tier: Tier, keys: Iterable[ChunkKey], mask: int) -> None:
        masks = self._masks[tier]
        for key in keys:
            if left := masks[key] & ~mask:
                masks[key] = left
            else:
                del masks[key]


def _is_old(report: HeldChunks, lane: _LaneView) -> bool:
    """It says nothing that is not known, not even that the holder is there still."""
    if (report.epoch, report.seq) == (lane.epoch, lane.seq):
        return report.base_seq is not None and report.base_seq < report.seq
    return (report.epoch, report.seq) < (lane.epoch, lane.seq)


def _node_lanes(node_id: str) -> Iterator[LaneName]:
    return (LaneName(node_id, tier) for tier in HELD_TIERS if tier is not Tier.RESIDENT)


def _first(keys: Iterable[ChunkKey], most: int) -> Iterator[ChunkKey]:
    return (key for key, _ in zip(keys, range(most), strict=False))
