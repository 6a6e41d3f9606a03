"""Has the text in which needles are hidden: RULER's repeated sentences, prose, or other needles."""

from __future__ import annotations

import enum
import random
import re
import uuid
from collections.abc import Iterator
from itertools import cycle

from cluster.evaluation.ruler.words import draw_keys
from services.training.corpus import Style, Worlds
from services.training.names import Split

_NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


class Haystack(enum.StrEnum):
    NOISE = "noise"
    ESSAY = "essay"
    NEEDLES = "needles"

    @property
    def joint(self) -> str:
        """Between two pieces."""
        return " " if self is Haystack.ESSAY else "\n"


class Value(enum.StrEnum):
    """A value that needles tell, by the name that a question gives it."""

    NUMBER = "number"
    UUID = "uuid"

    def draw(self, rng: random.Random) -> str:
        if self is Value.NUMBER:
            return str(rng.randrange(10**6, 10**7))
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def needle(key: str, value: str, kind: Value) -> str:
    return f"One of the special magic {kind}s for {key} is: {value}."


def pieces(haystack: Haystack, rng: random.Random, kind: Value, essay: str = "") -> Iterator[str]:
    """Without end. ``essay``: prose of one's own, from its beginning and again; empty: paragraphs about
    invented things. ``kind``: of other needles."""
    if haystack is Haystack.NOISE:
        return cycle([_NOISE])
    if haystack is Haystack.NEEDLES:
        return _other_needles(rng, kind)
    return cycle(_SENTENCE.split(" ".join(essay.split()))) if essay.strip() else _invented(rng)


def _invented(rng: random.Random) -> Iterator[str]:
    worlds = Worlds.load()
    while True:
        document = worlds.write(rng, rng.choice(list(worlds.kinds)), Split.HELD_OUT, Style.draw(rng))
        for section in document.sections:
            yield from (sentence.text for sentence in section.sentences)


def _other_needles(rng: random.Random, kind: Value) -> Iterator[str]:
    while True:
        key = Value.UUID.draw(rng) if kind is Value.UUID else draw_keys(rng, 1)[0]
        yield needle(key, kind.draw(rng), kind)
