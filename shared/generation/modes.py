"""Reuse modes: the one table of what each does with the context of a request.

A mode is one row. Nobody else asks which mode it is: they ask its row. What the engine computes by a mode is
its policy, the module of its name under ``shared.engine.modes``.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass

from shared.errors import InvalidRequest
from shared.generation.ranges import check_range

MAX_APE = 10.0


class Offsets(enum.Enum):
    """The places of stored chunks, and of the question behind them."""

    CUMULATIVE = "one behind the other"
    SIDE_BY_SIDE = "each right after the prefix, the question as far as behind all of them"
    SIDE_BY_SIDE_NEAR = "each right after the prefix, the question behind the longest"


class GoesBy(enum.Enum):
    """The part of ``Recompute`` that a mode goes by."""

    NOTHING = "nothing"
    RATIO = "ratio"
    TOKENS = "tokens"


class Chooser(enum.Enum):
    """Whoever says which tokens of the context are computed anew."""

    NOBODY = "nobody"
    CALLER = "the caller"
    ENGINE = "the engine, whatever is asked"
    QUESTION = "each question's own attention"
    SELECTOR = "an outside selector, for each question, while KV is loaded"


@dataclass(frozen=True, slots=True)
class ModeRow:
    """
    about: for the command line's help.
    stored: it uses the chunks' stored KV; else all of them are computed for the request alone.
    surveys_all: it computes all tokens in some layers, in order to choose.
    seeded: it goes by ``Recompute.seed``.
    weighed: it goes by ``Ape``.
    """

    about: str
    stored: bool = True
    offsets: Offsets = Offsets.CUMULATIVE
    goes_by: GoesBy = GoesBy.NOTHING
    chooser: Chooser = Chooser.NOBODY
    surveys_all: bool = False
    seeded: bool = False
    weighed: bool = False


_NO_ROW = ModeRow("")  # ``ReuseMode(name)`` finds the member, and makes none


class ReuseMode(enum.StrEnum):
    """The table. A mode's value is its name on the command line, in configurations and on the wire."""

    FULL = "full", ModeRow("all computed anew: the reference", stored=False)
    REORDERED = "reordered", ModeRow("as stored, at their places in the request")
    COMPOSITE = (
        "composite",
        ModeRow("as stored, each right after the prefix", offsets=Offsets.SIDE_BY_SIDE),
    )
    TOKENS = (
        "tokens",
        ModeRow("the listed tokens computed anew", goes_by=GoesBy.TOKENS, chooser=Chooser.CALLER),
    )
    EPIC = (
        "epic",
        ModeRow("the first tokens of each chunk computed anew", goes_by=GoesBy.RATIO, chooser=Chooser.ENGINE),
    )
    RANDOM = (
        "random",
        ModeRow(
            "any tokens computed anew, by seed: the control",
            goes_by=GoesBy.RATIO,
            chooser=Chooser.ENGINE,
            seeded=True,
        ),
    )
    QUERY_ATTENTION = (
        "query_attention",
        ModeRow(
            "those computed anew that the question attends to most",
            goes_by=GoesBy.RATIO,
            chooser=Chooser.QUESTION,
        ),
    )
    CACHEBLEND = (
        "cacheblend",
        ModeRow(
            "those computed anew whose stored KV is off most",
            goes_by=GoesBy.RATIO,
            chooser=Chooser.ENGINE,
            surveys_all=True,
        ),
    )
    APE = (
        "ape",
        ModeRow("as stored, side by side, weighed", offsets=Offsets.SIDE_BY_SIDE_NEAR, weighed=True),
    )
    CACHECLIP = (
        "cacheclip",
        ModeRow(
            "those computed anew that a small model chooses", goes_by=GoesBy.RATIO, chooser=Chooser.SELECTOR
        ),
    )

    row: ModeRow

    def __new__(cls, name: str, row: ModeRow = _NO_ROW) -> ReuseMode:
        mode = str.__new__(cls, name)
        mode._value_, mode.row = name, row
        return mode

    @property
    def recomputes(self) -> bool:
        """Some tokens of the context are computed anew, if it is told to."""
        return self.row.chooser is not Chooser.NOBODY

    @property
    def deferred(self) -> bool:
        """Somebody else chooses, while the KV is loaded: the request waits for ``Engine.decide``."""
        return self.row.chooser is Chooser.SELECTOR

    @property
    def needs_question(self) -> bool:
        """It goes by the question, so that a forest, which is opened without one, cannot have it."""
        return self.row.chooser in (Chooser.QUESTION, Chooser.SELECTOR)

    @property
    def has_policy(self) -> bool:
        """The engine does more than to place what is stored."""
        return self.row.weighed or (self.recomputes and not self.deferred)


@dataclass(frozen=True, slots=True)
class Recompute:
    """The part of the context that is computed anew under a mode that does so: each token of it attends to
    all that stands in front of it, as under ``full``. ``ratio``: of the tokens that the mode chooses (None:
    the default one); ``tokens``: under mode ``tokens`` which ones, counted from 0 over all chunks in order;
    ``seed``: of mode ``random``; ``by_question``: ``tokens`` for each question its own.

    Raises:
        InvalidRequest: names the field and its range.
    """

    ratio: float | None = None
    tokens: tuple[int, ...] = ()
    seed: int = 0
    by_question: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.ratio is not None:
            check_range("recompute.ratio", self.ratio, 0 <= self.ratio <= 1, "0 to 1")  # False for NaN
        for tokens in (self.tokens, *self.by_question):
            if len(set(tokens)) < len(tokens):
                repeated, _ = Counter(tokens).most_common(1)[0]
                raise InvalidRequest(
                    f"recompute.tokens: {repeated} is there more than once; name each token once"
                )
        check_range("recompute.seed", self.seed, 0 <= self.seed < 2**64, "a 64-bit unsigned number")

    @property
    def sets(self) -> tuple[tuple[int, ...], ...]:
        """The listed tokens: for each question, or once for all; each in ascending order."""
        return tuple(tuple(sorted(tokens)) for tokens in self.by_question or (self.tokens,))


@dataclass(frozen=True, slots=True)
class Ape:
    """The weights that mode ``ape`` gives the chunks (``shared.engine.kv.branch.Tempering``): sharper below
    a temperature of 1, less of them below a scale of 1. Both 1 is ordinary attention.

    Raises:
        InvalidRequest: names the field and its range.
    """

    temperature: float = 0.9
    scale: float = 0.9

    def __post_init__(self) -> None:
        for name, value in (("temperature", self.temperature), ("scale", self.scale)):
            # False for NaN
            check_range(f"ape.{name}", value, 0 < value <= MAX_APE, f"above 0 and at most {MAX_APE}")
