"""Names RULER's tasks, and draws what a case of each hides and asks."""

from __future__ import annotations

import enum
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.evaluation.ruler.haystacks import Haystack, Value, needle
from cluster.evaluation.ruler.words import draw_keys

_NUM_HOPS = 4
NEEDLE_TOKENS, TRACKING_TOKENS = 128, 30


class Variant(enum.StrEnum):
    """RULER's names."""

    SINGLE_1 = "niah_single_1"
    SINGLE_2 = "niah_single_2"
    SINGLE_3 = "niah_single_3"
    MULTIKEY_1 = "niah_multikey_1"
    MULTIKEY_2 = "niah_multikey_2"
    MULTIKEY_3 = "niah_multikey_3"
    MULTIVALUE = "niah_multivalue"
    MULTIQUERY = "niah_multiquery"
    TRACKING = "vt"

    @property
    def row(self) -> VariantRow:
        return _ROWS[self]

    @property
    def max_tokens(self) -> int:
        return TRACKING_TOKENS if self is Variant.TRACKING else NEEDLE_TOKENS


@dataclass(frozen=True, slots=True)
class VariantRow:
    """Numbers of keys that are told of, of values that each has, of keys that are asked for."""

    haystack: Haystack = Haystack.ESSAY
    value: Value = Value.NUMBER
    keys: int = 1
    values: int = 1
    queries: int = 1


_ROWS = {
    Variant.SINGLE_1: VariantRow(Haystack.NOISE),
    Variant.SINGLE_2: VariantRow(),
    Variant.SINGLE_3: VariantRow(value=Value.UUID),
    Variant.MULTIKEY_1: VariantRow(keys=4),
    Variant.MULTIKEY_2: VariantRow(Haystack.NEEDLES),
    Variant.MULTIKEY_3: VariantRow(Haystack.NEEDLES, Value.UUID),
    Variant.MULTIVALUE: VariantRow(values=4),
    Variant.MULTIQUERY: VariantRow(keys=4, queries=4),
    Variant.TRACKING: VariantRow(Haystack.NOISE),
}
NEEDLES = tuple(variant for variant in Variant if variant is not Variant.TRACKING)
"""The eight of which CacheClip reports the average reference coverage."""
AVERAGED = tuple(v for v in NEEDLES if v not in (Variant.MULTIKEY_2, Variant.MULTIKEY_3))
"""Those of them that its average holds."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """``needles``: in the order in which they are to stand, if ``ordered``."""

    needles: tuple[str, ...]
    question: str
    references: tuple[str, ...]
    ordered: bool = False


def draw_hidden(variant: Variant, rng: random.Random) -> Hidden:
    return _chain(rng) if variant is Variant.TRACKING else _needles(variant.row, rng)


def _needles(row: VariantRow, rng: random.Random) -> Hidden:
    keys = draw_keys(rng, row.keys)
    if row.haystack is Haystack.NEEDLES and row.value is Value.UUID:
        keys = [Value.UUID.draw(rng) for _ in keys]
    told = {key: [row.value.draw(rng) for _ in range(row.values)] for key in keys}
    asked = rng.sample(keys, row.queries)
    needles = [needle(key, value, row.value) for key, values in told.items() for value in values]
    rng.shuffle(needles)
    references = tuple(value for key in asked for value in told[key])
    return Hidden(tuple(needles), _question(asked, row.value, len(references) > 1), references)


def _question(asked: Sequence[str], value: Value, several: bool) -> str:
    keys = f"{', '.join(asked[:-1])}, and {asked[-1]}" if len(asked) > 1 else asked[0]
    what = f"What are all the special magic {value}s" if several else f"What is the special magic {value}"
    return f"{what} for {keys} mentioned in the provided text?"


def _chain(rng: random.Random) -> Hidden:
    names: list[str] = []
    while len(names) < _NUM_HOPS + 1:
        name = "".join(rng.choices(string.ascii_uppercase, k=5))
        if name not in names:
            names.append(name)
    value = str(rng.randrange(10_000, 100_000))
    sources = [value, *(f"VAR {name}" for name in names)]
    lines = tuple(f"VAR {name} = {source}" for name, source in zip(names, sources, strict=False))
    question = f"Find all variables that are assigned the value {value} in the text above."
    return Hidden(lines, question, tuple(names), ordered=True)
