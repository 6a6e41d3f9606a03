"""What several of these tests look at."""

from __future__ import annotations

from cluster.gate.trials import Shapes

SHAPES = Shapes()


def flat(text: str) -> str:
    return " ".join(text.split()).lower()
