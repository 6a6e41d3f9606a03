"""Makes prose that nobody has seen: documents of so many tokens, another one for every seed."""

from __future__ import annotations

import random
from collections.abc import Callable

_NAMES = ("Almwick", "Orla Venn", "Tambach", "the miller", "the old council", "a surveyor", "Bram Holt")
_DID = ("built", "measured", "sold", "repaired", "described", "lost", "painted")
_WHAT = ("a bridge", "the northern gate", "two barges", "the bell of the chapel", "a map", "the weir")
_WHEN = ("in spring", "before the flood", "for {} crowns", "in the year {}", "with {} helpers")


def prose(seed: str, num_tokens: int, count: Callable[[str], int]) -> str:
    """Paragraphs with no empty line behind the last one. ``count``: the tokens of a text."""
    draw = random.Random(seed)
    text = ""
    while True:
        longer = text + _gap(text, draw) + _sentence(draw)
        if count(longer) > num_tokens and text:
            return text
        text = longer


def _gap(text: str, draw: random.Random) -> str:
    if not text:
        return ""
    return "\n\n" if draw.random() < 0.15 else " "


def _sentence(draw: random.Random) -> str:
    when = draw.choice(_WHEN).format(draw.randrange(100, 2000))
    return f"{draw.choice(_NAMES)} {draw.choice(_DID)} {draw.choice(_WHAT)} {when}.".capitalize()
