"""Names what is compared: modes of reuse at ratios of recompute, forms of ``cacheclip``, and the marks above
and below them."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from cluster.gate.names import parse_names, parse_shares
from cluster.gate.tasks import TaskKind
from shared.engine.modes.token_selection import DEFAULT_RATIO
from shared.errors import InvalidRequest
from shared.generation.modes import GoesBy, Offsets, ReuseMode
from shared.generation.selection import Grouping, Reading

CACHECLIP = "cacheclip"
CONTROLS = tuple(mode for mode in ReuseMode if mode.row.goes_by is GoesBy.RATIO and not mode.deferred)
OTHERS = tuple(
    mode
    for mode in ReuseMode
    if mode.row.stored
    and not mode.recomputes
    and (mode.row.weighed or mode.row.offsets is not Offsets.CUMULATIVE)
)
MODES = (ReuseMode.REORDERED, *OTHERS, *CONTROLS, ReuseMode.CACHECLIP)
UNNAMED_RATIO = 0.05  # asked besides where recomputing has most to destroy


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


class Over(enum.StrEnum):
    """Context that an answer is read from, in place of the chunks that were retrieved."""

    PLACED = ""
    BLOCKS = "whole_blocks"
    NOTHING = "closed_book"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of answering. ``ratio``: of the tokens that are recomputed; None: of ``full``. ``clip``: of
    ``cacheclip``, its form."""

    mode: ReuseMode
    ratio: float | None = None
    clip: ClipSetting | None = None
    over: Over = Over.PLACED

    @property
    def label(self) -> str:
        """``MODE_RATIO``, the ratio in percent."""
        name = self.over.value or (self.clip.label if self.clip else self.mode.value)
        return name if self.ratio is None else f"{name}_{100 * self.ratio:g}"

    @property
    def recomputes(self) -> bool:
        """By question, each with tokens of its own."""
        return bool(self.ratio)


FULL, REORDERED = Arm(ReuseMode.FULL), Arm(ReuseMode.REORDERED, 0.0)
WHOLE_BLOCKS, CLOSED_BOOK = (
    Arm(ReuseMode.FULL, over=Over.BLOCKS),
    Arm(ReuseMode.FULL, over=Over.NOTHING),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Modes that are compared. ``others``: modes besides ``reordered`` that recompute nothing.
    ``as_served``: a ratio is what a request's would be, as a verdict needs it; else every mode computes as
    much as ``cacheclip``, where there is one, and ``cacheblend`` its first two layers besides."""

    controls: tuple[ReuseMode, ...] = CONTROLS
    clips: tuple[ClipSetting, ...] = (ClipSetting(),)
    ratios: tuple[float, ...] = (0.1, 0.2, 0.4)
    others: tuple[ReuseMode, ...] = ()
    as_served: bool = False

    @property
    def controls_as(self) -> str:
        """Says how much the controls compute, for the settings of kept answers."""
        if self.as_served:
            return "served"
        return self.clips[0].label if self.clips else "ratio"

    @property
    def ratio(self) -> float:
        """The one that stands for all where there can be only one."""
        return DEFAULT_RATIO if DEFAULT_RATIO in self.ratios or not self.ratios else self.ratios[0]

    def arms(self, kind: str) -> tuple[Arm, ...]:
        return tuple(self._arms(kind))

    @property
    def candidates(self) -> tuple[Arm, ...]:
        """Lists what a verdict may name, except ``full``: ways that requests can ask for, about questions of
        every kind. Of the forms of ``cacheclip`` the first."""
        served = (None, *self.clips[:1])
        return tuple(
            arm
            for arm in self.arms("")
            if arm.over is Over.PLACED and arm.clip in served and arm != FULL and not self._matched(arm)
        )

    def _matched(self, arm: Arm) -> bool:
        """It computes another part of the tokens than a request of its mode and ratio does."""
        control = arm.recomputes and arm.clip is None and not self.as_served
        return control and bool(self.clips or arm.mode.row.surveys_all)

    def _arms(self, kind: str) -> Iterator[Arm]:
        yield from (CLOSED_BOOK, WHOLE_BLOCKS, FULL, REORDERED)
        yield from (Arm(mode) for mode in self.others)
        more = {UNNAMED_RATIO} if kind == TaskKind.UNNAMED and self.ratios else set()
        for ratio in sorted({*self.ratios, *more}):
            yield from (Arm(mode, ratio) for mode in self.controls)
            yield from (Arm(ReuseMode.CACHECLIP, ratio, clip) for clip in self.clips)

    def reference(self, arm: Arm) -> Arm:
        """Returns what it is tested against: ``cacheclip`` at the same ratio, else ``reordered``."""
        if not (self.clips and self.ratios):
            return REORDERED
        return Arm(ReuseMode.CACHECLIP, arm.ratio or self.ratio, self.clips[0])


def parse_clips(names: str) -> tuple[ClipSetting, ...]:
    """``budget/stitched,paper/each``; empty: none.

    Raises:
        InvalidRequest: names what is no grouping or reading.
    """
    return tuple(_clip(name) for name in names.split(",")) if names.strip() else ()


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
    return parse_names("--controls", names, CONTROLS)


def parse_others(names: str) -> tuple[ReuseMode, ...]:
    """
    Raises:
        InvalidRequest: names what is no mode besides ``reordered`` that recomputes nothing.
    """
    return parse_names("--others", names, OTHERS)


def parse_ratios(numbers: str) -> tuple[float, ...]:
    """``0.1,0.2``; 0 is ``reordered``, which is asked anyway.

    Raises:
        InvalidRequest: something is no number from 0 to 1.
    """
    return tuple(filter(None, parse_shares("--ratios", numbers, "the tokens")))
