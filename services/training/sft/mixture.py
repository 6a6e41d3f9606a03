"""Draws what every update is made of: kinds of examples in fixed shares, each kind in an order of its own.

Slot n of all slots goes to the kind that is furthest behind its share. So no kind is ever an example or more
away from its share, and where the shares of a batch are whole numbers, every batch has exactly them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from services.training.sft.samples import SftSample
from shared.errors import ConfigError

PAPER_SHARES = {"qa": 50.0, "dialogue": 25.0, "reasoning": 10.0, "code": 10.0, "others": 5.0}
"""Document question answering, general dialogue, reasoning, code, others (arXiv 2410.07590, table 5)."""


@dataclass(frozen=True, slots=True)
class Kind:
    """``share``: of the samples, relative to those of the other kinds. ``source``: what it is made of, for
    readers."""

    name: str
    share: float
    samples: Sequence[SftSample]
    source: str = ""


class Mixture:
    """
    Raises:
        ConfigError: a share is not above 0, or a kind has no samples.
    """

    def __init__(self, kinds: Sequence[Kind], seed: int) -> None:
        for kind in kinds:
            if not 0 < kind.share < float("inf"):
                raise ConfigError(f"mix: {kind.name}: the share must be above 0, got {kind.share:g}")
            if not kind.samples:
                raise ConfigError(f"mix: {kind.name}: there is no example to train on; give it more")
        self.kinds, self._seed = tuple(kinds), seed
        total = sum(kind.share for kind in kinds)
        self._shares = [kind.share / total for kind in kinds]
        self._slots = bytearray()  # the kind of each
        self._counts = [0] * len(kinds)
        self._order = lru_cache(2 * len(kinds))(self._shuffled)

    def shares(self) -> Mapping[str, float]:
        """They sum to 1."""
        return dict(zip((kind.name for kind in self.kinds), self._shares, strict=True))

    def drawn(self, update: int, batch: int) -> Iterator[SftSample]:
        """The samples of an update."""
        first = update * batch
        self._fill(first + batch)
        counts = [self._slots.count(number, 0, first) for number in range(len(self.kinds))]
        for number in self._slots[first : first + batch]:
            samples = self.kinds[number].samples
            epoch, place = divmod(counts[number], len(samples))
            yield samples[self._order(number, epoch)[place]]
            counts[number] += 1

    def _fill(self, num_slots: int) -> None:
        while len(self._slots) < num_slots:
            due = len(self._slots) + 1
            behind = [s * due - c for s, c in zip(self._shares, self._counts, strict=True)]
            number = max(range(len(behind)), key=behind.__getitem__)
            self._slots.append(number)
            self._counts[number] += 1

    def _shuffled(self, number: int, epoch: int) -> list[int]:
        kind = self.kinds[number]
        numbers = range(len(kind.samples))
        return random.Random(f"{self._seed} {kind.name} epoch {epoch}").sample(numbers, len(numbers))


def held_out(kind: Kind, share: float, most: int, seed: int) -> tuple[Kind, Kind]:
    """What of a kind is trained on, and what it is evaluated by: a share of it, at least one sample, at most
    ``most``.

    Raises:
        ConfigError: there are fewer than two samples.
    """
    if len(kind.samples) < 2:
        raise ConfigError(f"mix: {kind.name}: it takes two examples at least, one of them to evaluate by")
    shuffled = random.Random(f"{seed} {kind.name} held out").sample(list(kind.samples), len(kind.samples))
    count = min(len(shuffled) - 1, most, max(1, round(share * len(shuffled))))
    return (
        Kind(kind.name, kind.share, shuffled[count:], kind.source),
        Kind(kind.name, kind.share, shuffled[:count], kind.source),
    )
