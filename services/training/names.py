"""Invented names, split for good into those a model may see in training and those kept for testing it."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from enum import Enum


class Split(Enum):
    """One name in eight is never seen in training."""

    TRAIN = "train"
    HELD_OUT = "held_out"

    def holds(self, name: str) -> bool:
        return (zlib.crc32(name.encode()) % 8 == 0) == (self is Split.HELD_OUT)


class NameMaker:
    """Draws values of every kind: names from one side of the split, numbers, years, and words of closed
    lists."""

    def __init__(
        self,
        rng: random.Random,
        split: Split,
        choices: Mapping[str, Sequence[str]],
        syllables: Mapping[str, Sequence[str]],
    ) -> None:
        self._rng = rng
        self._split = split
        self._choices = choices
        self._syllables = syllables
        self._makers: dict[str, Callable[[], str]] = {
            "place": self.place,
            "person": self.person,
            "company": lambda: self.fill("{place} {trade}"),
            "ship": self.ship,
        }

    def draw(self, kind: str) -> str:
        """A value of ``kind``: "year LOW HIGH", "number LOW HIGH", a kind of name, or the name of a closed
        list."""
        word, *bounds = kind.split()
        if word in ("year", "number"):
            number = self._rng.randint(int(bounds[0]), int(bounds[1]))
            return str(number) if word == "year" else f"{number:,}"
        return self._makers[word]() if word in self._makers else self._rng.choice(self._choices[word])

    def fill(self, pattern: str) -> str:
        """``pattern`` with every {kind} in it drawn."""
        for kind in ("place", "trade", "feast", "hue", "figure"):
            if "{" + kind + "}" in pattern:
                pattern = pattern.replace("{" + kind + "}", self.draw(kind))
        return pattern

    def place(self) -> str:
        return self._invent("place_ends")

    def person(self) -> str:
        return f"{self._rng.choice(self._syllables['first_names'])} {self._invent('surname_ends')}"

    def ship(self) -> str:
        return self._drawn_from_split(lambda: self.fill("the {hue} {figure}"))

    def _invent(self, ends: str) -> str:
        def once() -> str:
            middle = self._rng.choice(self._syllables["middles"]) if self._rng.random() < 0.3 else ""
            return (
                self._rng.choice(self._syllables["starts"]) + middle + self._rng.choice(self._syllables[ends])
            )

        return self._drawn_from_split(once)

    def _drawn_from_split(self, draw: Callable[[], str]) -> str:
        while not self._split.holds(name := draw()):
            pass
        return name
