"""Says what is asked of a row of logits, and what comes of it; on which device is nobody's business here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TypeAlias

from shared.engine.decoding.grammar import GrammarState
from shared.generation.asked import SamplingParams

Ranked: TypeAlias = tuple[tuple[int, float], ...]
"""Tokens with their log-probabilities, best first; of equally likely ones the smaller id first."""


@dataclass(frozen=True, slots=True)
class Draw:
    """``path``: tells apart the branches of one request with one seed. ``position``: index of the token among
    the branch's. ``grammar``: of the text so far, by which only some tokens are drawn; the token is not told
    to it here."""

    params: SamplingParams
    path: int
    position: int
    grammar: GrammarState | None = None

    @property
    def key(self) -> int:
        text = f"{self.params.seed}/{self.path}/{self.position}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class Sampled:
    token_id: int
    logprob: float
    top_logprobs: Ranked
    watched: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """Of one row of logits: tokens drawn from it, and so many of the most likely ones."""

    draws: tuple[Draw, ...] = ()
    num_ranked: int = 0

    @property
    def anything(self) -> bool:
        return bool(self.draws or self.num_ranked)

    @property
    def most_ranked(self) -> int:
        """As many as any part of it needs."""
        return max((self.num_ranked, *(draw.params.top_logprobs for draw in self.draws)))


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """Outcome of ``Wanted``: as many of each."""

    sampled: tuple[Sampled, ...] = ()
    ranked: Ranked = ()
