"""Names what is compared: modes of reuse, and forms of ``cacheclip``."""

from __future__ import annotations

from dataclasses import dataclass

from shared.errors import InvalidRequest
from shared.generation.modes import GoesBy, ReuseMode
from shared.generation.selection import Grouping, Reading

CACHECLIP = "cacheclip"
BASELINES = (ReuseMode.FULL, ReuseMode.REORDERED)
CONTROLS = tuple(mode for mode in ReuseMode if mode.row.goes_by is GoesBy.RATIO and not mode.deferred)


@dataclass(frozen=True, slots=True)
class ClipSetting:
    """One form of ``cacheclip``; the first one of a run goes by that name alone, and says how many tokens the
    controls get."""

    grouping: Grouping = Grouping.BUDGET
    reading: Reading = Reading.STITCHED

    @property
    def label(self) -> str:
        return (
            CACHECLIP if self == ClipSetting() else f"{CACHECLIP}/{self.grouping.value}/{self.reading.value}"
        )


def parse_clips(names: str) -> tuple[ClipSetting, ...]:
    """``budget/stitched,paper/each``.

    Raises:
        InvalidRequest: names what is no grouping or reading.
    """
    return tuple(_clip(name) for name in names.split(","))


def _clip(name: str) -> ClipSetting:
    grouping, _, reading = name.strip().partition("/")
    try:
        return ClipSetting(Grouping(grouping), Reading(reading))
    except ValueError:
        groupings, readings = "|".join(g.value for g in Grouping), "|".join(r.value for r in Reading)
        raise InvalidRequest(
            f"--cacheclip: {name!r} is not a form of it; write {groupings}/{readings}"
        ) from None


def parse_controls(names: str) -> tuple[ReuseMode, ...]:
    """
    Raises:
        InvalidRequest: names what is no control.
    """
    known = {mode.value: mode for mode in CONTROLS}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in known]:
        raise InvalidRequest(f"--controls: {unknown[0]!r} is not one of {', '.join(known)}")
    return tuple(known[name] for name in wanted)


def label_of(mode: ReuseMode | ClipSetting) -> str:
    return mode.label if isinstance(mode, ClipSetting) else mode.value
