"""Reuse modes: where the chunks of a context stand, and which of their tokens are computed anew."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from shared.errors import InvalidRequest
from shared.generation.ranges import check_range

MAX_APE = 10.0


class ReuseMode(enum.StrEnum):
    """Where the chunks of a context stand, and which of their tokens are computed anew
    (``shared.engine.modes.selecting``)."""

    FULL = "full"
    REORDERED = "reordered"
    COMPOSITE = "composite"
    TOKENS = "tokens"
    EPIC = "epic"
    RANDOM = "random"
    QUERY_ATTENTION = "query_attention"
    CACHEBLEND = "cacheblend"
    APE = "ape"
    CACHECLIP = "cacheclip"

    @property
    def recomputes(self) -> bool:
        return self not in (ReuseMode.FULL, ReuseMode.REORDERED, ReuseMode.COMPOSITE, ReuseMode.APE)

    @property
    def deferred(self) -> bool:
        """Somebody else chooses, while the KV is loaded: the request waits for ``Engine.decide``."""
        return self is ReuseMode.CACHECLIP


@dataclass(frozen=True, slots=True)
class Recompute:
    """How much of the context is computed anew under a mode that does so: each token of it attends to all
    that stands in front of it, as under ``full``. ``ratio``: of the tokens that the mode chooses (None: the
    default one); ``tokens``: under mode ``tokens`` which ones, counted from 0 over all chunks in order;
    ``seed``: of mode ``random``.

    Raises:
        InvalidRequest: names the field and its range.
    """

    ratio: float | None = None
    tokens: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.ratio is not None:
            check_range("recompute.ratio", self.ratio, 0 <= self.ratio <= 1, "0 to 1")  # False for NaN
        if len(set(self.tokens)) < len(self.tokens):
            repeated = next(token for i, token in enumerate(self.tokens) if token in self.tokens[:i])
            raise InvalidRequest(
                f"recompute.tokens: {repeated} is there more than once; name each token once"
            )
        check_range("recompute.seed", self.seed, 0 <= self.seed < 2**64, "a 64-bit unsigned number")


@dataclass(frozen=True, slots=True)
class Ape:
    """How mode ``ape`` weighs the chunks (``shared.engine.modes.tempering``): sharper below a temperature of
    1, less of them below a scale of 1. Both 1 is ordinary attention.

    Raises:
        InvalidRequest: names the field and its range.
    """

    temperature: float = 0.9
    scale: float = 0.9

    def __post_init__(self) -> None:
        for name, value in (("temperature", self.temperature), ("scale", self.scale)):
            # False for NaN
            check_range(f"ape.{name}", value, 0 < value <= MAX_APE, f"above 0 and at most {MAX_APE}")
