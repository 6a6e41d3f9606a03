"""Has the words of which keys are made: an adjective and a noun, two thousand pairs."""

from __future__ import annotations

import random

_ADJECTIVES = """
ancient bitter brave bright calm careful cheerful clever clumsy cold crisp curious daring deep eager early
elegant faint famous fancy fierce gentle glossy grand hasty hollow honest humble jolly keen lively lonely
loud mellow modest narrow nimble plain polite proud quick quiet rapid rough silent sturdy
"""
_NOUNS = """
acorn anchor apron arch badge barrel basket beacon bell bridge button cabin candle canyon carpet castle
chimney cloud compass copper cradle drum feather fiddle fountain garden goblet hammer harbour helmet island
kettle ladder lantern marble meadow mirror orchard paddle pepper
"""


def draw_keys(rng: random.Random, number: int) -> list[str]:
    """Different ones."""
    adjectives, nouns = _ADJECTIVES.split(), _NOUNS.split()
    return [
        f"{adjectives[pair // len(nouns)]}-{nouns[pair % len(nouns)]}"
        for pair in rng.sample(range(len(adjectives) * len(nouns)), number)
    ]
