"""Decides what is learned when: which lessons every update is made of, and which none is ever made of."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

from services.training.loop_settings import LoopSettings
from services.training.trainee import Lesson, LessonT
from shared.errors import ConfigError

DrawnT = TypeVar("DrawnT", bound=Lesson, covariant=True)


class Curriculum(Protocol[DrawnT]):
    """``lessons`` are trained on, ``held_out`` are evaluated on; ``held_out_kinds``: these by kind, where
    there are kinds."""

    @property
    def lessons(self) -> Sequence[DrawnT]: ...

    @property
    def held_out(self) -> Sequence[DrawnT]: ...

    @property
    def held_out_kinds(self) -> Mapping[str, Sequence[DrawnT]]: ...

    def drawn(self, update: int, count: int) -> Iterator[DrawnT]:
        """The ``count`` lessons of an update; the same whenever it is asked."""
        ...


class Shuffled(Generic[LessonT]):
    """One epoch of all lessons behind the other, each in an order of its own.

    Raises:
        ConfigError: too few contexts.
    """

    def __init__(self, lessons: Sequence[LessonT], settings: LoopSettings) -> None:
        if len(lessons) < 2:
            raise ConfigError("data: it takes two contexts at least, one to train on and one to evaluate")
        self.held_out, self.lessons = split(lessons, settings, "contexts")
        self.held_out_kinds: Mapping[str, Sequence[LessonT]] = {}
        self._order = Order(settings.seed, len(self.lessons))

    def drawn(self, update: int, count: int) -> Iterator[LessonT]:
        for place in range(update * count, (update + 1) * count):
            yield self.lessons[self._order[place]]


class Order:
    """Numbers below ``count``, each once per epoch. ``of``: tells several of one seed apart."""

    def __init__(self, seed: int, count: int, of: str = "") -> None:
        self._seed, self._count, self._of = seed, count, of
        self._epoch = lru_cache(2)(self._shuffled)

    def __getitem__(self, place: int) -> int:
        epoch, place = divmod(place, self._count)
        return self._epoch(epoch)[place]

    def _shuffled(self, epoch: int) -> list[int]:
        return random.Random(f"{self._seed} {self._of}epoch {epoch}").sample(range(self._count), self._count)


def split(lessons: Sequence[LessonT], settings: LoopSettings, of: str) -> tuple[list[LessonT], list[LessonT]]:
    """Returns what is held out of two lessons or more, at least one, and the others. ``of``: tells several of
    one seed apart."""
    shuffled = random.Random(f"{settings.seed} {of}").sample(list(lessons), len(lessons))
    count = min(len(lessons) - 1, max(1, round(settings.held_out * len(lessons))))
    return shuffled[:count], shuffled[count:]
