"""Guards quality: are the fast answers still the answers? A few requests are asked again with ``full`` and
compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from load_tests.service.sample import Sample


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of ``num_branches`` answers in mode ``reuse`` with ``full``'s: ``same`` as a share of answers,
    ``first`` of first tokens, ``leading`` the mean share of ``full``'s tokens before the first that
    differs."""

    reuse: str
    num_branches: int
    same: float
    first: float
    leading: float


def agreement(reuse: str, samples: Sequence[Sample], references: Sequence[Sample]) -> Agreement:
    """``references``: the same requests with ``full``."""
    pairs = [
        pair
        for sample, reference in zip(samples, references, strict=True)
        if sample.reply and reference.reply
        for pair in zip(sample.reply.tokens, reference.reply.tokens, strict=True)
    ]
    count = len(pairs) or 1
    return Agreement(
        reuse,
        len(pairs),
        same=sum(ours == full for ours, full in pairs) / count,
        first=sum(ours[:1] == full[:1] for ours, full in pairs) / count,
        leading=sum(_leading(ours, full) for ours, full in pairs) / count,
    )


def _leading(ours: tuple[int, ...], full: tuple[int, ...]) -> float:
    equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, full, strict=False)))
    return equal / len(full) if full else 1.0
