"""Tells routers what a holder of chunks has: a snapshot of all that it has, then what came and went,
numbered, so that a router notices when it has missed something.

Of one holder and tier comes a lane of its own. Exact truth stays with the holder; a lane is a projection of
it. In between travels ``plain``: a mapping of numbers, texts and lists, as JSON has them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from shared.errors import InvalidRequest
from shared.generation.ranges import check_range
from shared.routing.costs import MOST_KEYS, MOST_MS, ChunkKey, ReplicaLoad, Tier

HELD_TIERS = (Tier.RESIDENT, Tier.MEMORY, Tier.DISK)
"""Those that somebody reports: a replica its engine's, a node the other two."""
MOST_HELD = 65_536
"""Keys of one report or lane: who holds more tells the ones that are used most."""


class ReportOutcome(enum.StrEnum):
    """``SNAPSHOT_NEEDED``: the lane counts no more until one comes; ``OLD``: it was known already;
    ``UNKNOWN``: it is of no replica or node that there is; ``MALFORMED``: not believed, and the lane, if it
    names one, counts no more."""

    APPLIED = "applied"
    OLD = "old"
    SNAPSHOT_NEEDED = "snapshot_needed"
    UNKNOWN = "unknown"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class LaneName:
    """``holder``: a replica's id for the tier ``RESIDENT``, else a node's.

    Raises:
        InvalidRequest: nobody holds such a tier.
    """

    holder: str
    tier: Tier

    def __post_init__(self) -> None:
        named = isinstance(self.holder, str) and 0 < len(self.holder) <= 256
        check_range("holder", self.holder, named, "a text of 1 to 256 characters")
        check_range("tier", self.tier, self.tier in HELD_TIERS, f"one of {', '.join(HELD_TIERS)}")


@dataclass(frozen=True, slots=True)
class HeldChunks:
    """Added and removed since ``base_seq``: each key as its last change left it, even where it was so before;
    ``base_seq`` None: a snapshot, ``added`` is all of it. ``epoch``: grows when the holder begins
    anew, ``seq`` with every change. One without changes, whose ``seq`` is its
    ``base_seq``, renews the lease.

    Raises:
        InvalidRequest: names what cannot be true.
    """

    lane: LaneName
    epoch: int
    seq: int
    added: frozenset[ChunkKey] = frozenset()
    removed: frozenset[ChunkKey] = frozenset()
    base_seq: int | None = None

    def __post_init__(self) -> None:
        for name in ("epoch", "seq"):
            _check_number(name, getattr(self, name))
        num_keys = len(self.added) + len(self.removed)
        check_range("added", num_keys, num_keys <= MOST_HELD, f"at most {MOST_HELD} keys; tell fewer")
        for name in ("added", "removed"):
            for key in getattr(self, name):
                _check_number(name, key)
        check_range("removed", "keys", self.added.isdisjoint(self.removed), "of chunks that were not added")
        if self.base_seq is None:
            check_range("removed", "keys", not self.removed, "empty in a snapshot")
            return
        _check_number("base_seq", self.base_seq)
        least = self.base_seq + bool(num_keys)
        check_range("seq", self.seq, self.seq >= least, f"at least {least} with these changes")


def plain(report: HeldChunks) -> dict[str, object]:
    return {
        "holder": report.lane.holder,
        "tier": report.lane.tier.value,
        "epoch": report.epoch,
        "seq": report.seq,
        "base_seq": report.base_seq,
        "added": sorted(report.added),
        "removed": sorted(report.removed),
    }


def lane_of(message: Mapping[str, object]) -> LaneName:
    """
    Raises:
        InvalidRequest: it names none.
    """
    holder, tier = message.get("holder"), message.get("tier")
    if not isinstance(holder, str) or tier not in list(HELD_TIERS):
        raise InvalidRequest("holder, tier: a report names its replica or node, and a tier that it holds")
    return LaneName(holder, Tier(str(tier)))


def read_report(message: Mapping[str, object]) -> HeldChunks:
    """Inverse of ``plain``.

    Raises:
        InvalidRequest: names the field that is missing or wrong.
    """
    lane, base_seq = lane_of(message), message.get("base_seq")
    return HeldChunks(
        lane,
        _number("epoch", message.get("epoch")),
        _number("seq", message.get("seq")),
        _keys("added", message.get("added", ())),
        _keys("removed", message.get("removed", ())),
        None if base_seq is None else _number("base_seq", base_seq),
    )


def plain_load(load: ReplicaLoad) -> dict[str, float | int]:
    return {"wait_ms": load.wait_ms, "loading_ms": load.loading_ms, "branches": load.branches}


def read_load(message: Mapping[str, object], age_ms: float) -> ReplicaLoad:
    """Inverse of ``plain_load``. ``age_ms``: how old it is, by the clock of who reads.

    Raises:
        InvalidRequest: names the field that is missing or wrong.
    """
    wait_ms, loading_ms, branches = (message.get(name) for name in ("wait_ms", "loading_ms", "branches"))
    if not isinstance(wait_ms, int | float) or not isinstance(loading_ms, int | float):
        raise InvalidRequest("wait_ms, loading_ms: a replica says for how many milliseconds it is busy")
    return ReplicaLoad(wait_ms, loading_ms, branches, age_ms)  # type: ignore[arg-type]  # it checks


def told_age_ms(notice: Mapping[str, object]) -> float:
    """Returns how long ago what a notice says was so; 0 where it does not say, or nonsense."""
    age_ms = notice.get("age_ms")
    return min(age_ms, MOST_MS) if isinstance(age_ms, int | float) and age_ms >= 0 else 0.0


def _keys(name: str, value: object) -> frozenset[ChunkKey]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise InvalidRequest(f"{name}: must be a list of keys")
    check_range(name, len(value), len(value) <= MOST_HELD, f"at most {MOST_HELD} keys; tell fewer")
    return frozenset(_number(name, key) for key in value)


def _number(name: str, value: object) -> int:
    _check_number(name, value)
    assert isinstance(value, int)
    return value


def _check_number(name: str, value: object) -> None:
    if type(value) is not int or not 0 <= value < MOST_KEYS:
        raise InvalidRequest(f"{name}: {value!r} is no 64-bit number, 0 or more")
