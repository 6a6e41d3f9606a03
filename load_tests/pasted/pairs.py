"""Asks about pasted documents twice, in another order the second time, and finds what that saves."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from shared.measuring.paired import median_of
from shared.measuring.report import Measurement, measured

MS = 1000


@dataclass(frozen=True, slots=True)
class AskedOnce:
    """``ttft_s``: from the question to the first text of the answer, by the caller's clock."""

    ttft_s: float
    prompt_tokens: int
    cached_tokens: int
    written_tokens: int


Ask = Callable[[str], Awaitable[AskedOnce]]
"""Of a whole message."""


@dataclass(frozen=True, slots=True)
class AskedTwice:
    first: AskedOnce
    again: AskedOnce


async def ask_twice(ask: Ask, documents: Sequence[str], question: str, seed: int) -> AskedTwice:
    """The second time in an order in which no document comes where it was."""
    order = list(range(len(documents)))
    draw = random.Random(seed)
    while any(i == place for place, i in enumerate(order)):
        draw.shuffle(order)
    first = await ask(message(documents, question))
    return AskedTwice(first, await ask(message([documents[i] for i in order], question)))


def message(documents: Sequence[str], question: str) -> str:
    return "\n\n".join([*documents, question])


def findings(pairs: Sequence[AskedTwice]) -> Iterator[Measurement]:
    """Times of the second time beside those of the first one, the median of the pairs' ratios with its 95 %
    interval, and the shares of the prompt that were there and that are kept from now on."""
    first, again = (
        [one.ttft_s * MS for one in ones] for ones in zip(*((p.first, p.again) for p in pairs), strict=True)
    )
    yield measured("ttft_pasted_again", again, "ms", baseline=first)
    ratio = median_of([one / other for one, other in zip(again, first, strict=True)])
    yield Measurement(
        "ttft_again_over_first", ratio.value, "× first", min=ratio.low, max=ratio.high, n=len(pairs)
    )
    for name, asked in (("first", [p.first for p in pairs]), ("again", [p.again for p in pairs])):
        for what, field in (("cached", "cached_tokens"), ("written", "written_tokens")):
            shares = [100 * getattr(one, field) / one.prompt_tokens for one in asked]
            yield measured(f"{what}_{name}", shares, "%")
