"""Says what of a file is asked, and draws it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from cluster.evaluation.metrics import Metric
from cluster.gate.names import parse_shares

T = TypeVar("T")
DEFAULT_NOISE = "0,0.2,0.4,0.6,0.8"


@dataclass(frozen=True, slots=True)
class WantedCases:
    """
    cases: at most so many of each task, drawn by ``seed``; those of fewer are among those of more.
    max_tokens: of an answer; 0: as the authors have it. metric: None: the authors'.
    noise: shares of passages that do not tell the answer, of ``passages`` (RGB).
    """

    cases: int
    seed: int = 0
    max_tokens: int = 0
    metric: Metric | None = None
    noise: tuple[float, ...] = ()
    passages: int = 5

    def drawn(self, found: Sequence[T]) -> list[T]:
        order = random.Random(f"{self.seed} cases").sample(range(len(found)), len(found))
        return [found[i] for i in order[: self.cases]]

    def rng(self, case: str) -> random.Random:
        return random.Random(f"{self.seed} {case}")


def parse_noise(numbers: str) -> tuple[float, ...]:
    """``0,0.2``

    Raises:
        InvalidRequest: something is no number from 0 to 1.
    """
    return parse_shares("--noise", numbers, "the passages")
