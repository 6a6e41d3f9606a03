"""Draws what every update is made of: kinds of lessons in fixed shares, each kind in an order of its own.

Every slot goes to the kind that is furthest behind its share. So no kind is ever a lesson or more away from
its share, and where its share of every update is a whole number, every update has exactly that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

from services.training.curriculum import Order, split
from services.training.loop_settings import LoopSettings
from services.training.trainee import LessonT
from shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LessonKind(Generic[LessonT]):
    """``share``: of the lessons, relative to those of the other kinds. ``source``: what it is made of, for
    readers."""

    name: str
    share: float
    lessons: Sequence[LessonT]
    source: str = ""


def mixture_facts(told: Sequence[str]) -> dict[str, str]:
    """What a checkpoint and a recipe say of a mixture, by name; ``told``: its lines, none where there is
    none."""
    return {"mixture": "; ".join(told)} if told else {}


class Mixture(Generic[LessonT]):
    """Of every kind ``held_out`` of the settings is evaluated on, at least one lesson.

    Raises:
        ConfigError: a share is not above 0, or a kind has no two lessons.
    """

    def __init__(self, kinds: Sequence[LessonKind[LessonT]], settings: LoopSettings) -> None:
        for kind in kinds:
            if not 0 < kind.share < float("inf"):
                raise ConfigError(f"mix: {kind.name}: the share must be above 0, got {kind.share:g}")
            if len(kind.lessons) < 2:
                raise ConfigError(
                    f"mix: {kind.name}: it takes two samples at least, one to train on and one to evaluate"
                )
        parts = [split(kind.lessons, settings, f"{kind.name} ") for kind in kinds]
        self.held_out_kinds = {kind.name: held_out for kind, (held_out, _) in zip(kinds, parts, strict=True)}
        self.held_out = [lesson for held_out in self.held_out_kinds.values() for lesson in held_out]
        self._lessons = [lessons for _, lessons in parts]
        self._orders = [
            Order(settings.seed, len(lessons), f"{kind.name} ")
            for kind, lessons in zip(kinds, self._lessons, strict=True)
        ]
        self._kinds, self._total = tuple(kinds), sum(kind.share for kind in kinds)
        self._slots = bytearray()  # the kind of each
        self._taken = [0] * len(kinds)

    @property
    def lessons(self) -> list[LessonT]:
        return [lesson for lessons in self._lessons for lesson in lessons]

    def told(self) -> tuple[str, ...]:
        """A line per kind, for readers."""
        return tuple(
            f"{kind.name}: {100 * kind.share / self._total:.4g} % of the samples, {len(kind.lessons)} there"
            + (f" ({kind.source})" if kind.source else "")
            for kind in self._kinds
        )

    def drawn(self, update: int, count: int) -> Iterator[LessonT]:
        first = update * count
        self._fill(first + count)
        places = [self._slots.count(number, 0, first) for number in range(len(self._kinds))]
        for number in self._slots[first : first + count]:
            yield self._lessons[number][self._orders[number][places[number]]]
            places[number] += 1

    def _fill(self, num_slots: int) -> None:
        shares = [kind.share / self._total for kind in self._kinds]
        while len(self._slots) < num_slots:
            due = len(self._slots) + 1
            behind = [share * due - taken for share, taken in zip(shares, self._taken, strict=True)]
            number = max(range(len(behind)), key=behind.__getitem__)
            self._slots.append(number)
            self._taken[number] += 1
