"""Asks one generator about texts that nobody, the asker or another tenant has asked before, in random order,
and judges whether the times to the first token tell which it was.

An attacker sees one time and guesses. ``Attack.auc`` is the chance that of a time over a known text and one
over a new text the shorter is the known one's: 1 a sure guess, 0.5 a coin.
"""

from __future__ import annotations

import asyncio
import enum
import random
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.generator.service import Generator
from shared.generation.asked import SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.orders import GenerationOrder, Reuse
from shared.generation.told import TokenEvent
from shared.measuring.paired import Interval
from shared.request import RequestContext

Floats = NDArray[np.float64]
ASKER, OTHER = "asker", "other"
_NUM_SAMPLES = 2000


class KnownTo(enum.StrEnum):
    """To whom a text is known before it is asked about."""

    NOBODY = "nobody"
    SELF = "self"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Attack:
    """``saved_ms``: medians' difference, new text less known text. ``p``: of equal times (Mann-Whitney)."""

    auc: Interval
    saved_ms: Interval
    p: float

    @property
    def tells(self) -> bool:
        """The guess, by shorter times or by longer ones, is better than a coin's, beyond chance."""
        return not self.auc.low <= 0.5 <= self.auc.high and self.p < 0.01


async def measure(
    generator: Generator, num_texts: int, text_tokens: int, seed: int = 0
) -> dict[KnownTo, Floats]:
    """Seconds to the first token, of as many texts of random tokens for each. Somebody always asks something
    just before, so that nothing but the text makes a difference."""
    draw = random.Random(seed)
    order = [known for known in KnownTo for _ in range(num_texts)]
    draw.shuffle(order)
    times: dict[KnownTo, list[float]] = {known: [] for known in KnownTo}
    for known in order:
        text = _ids(draw, generator, text_tokens)
        before = _ids(draw, generator, text_tokens) if known is KnownTo.NOBODY else text
        await _asked(generator, ASKER if known is KnownTo.SELF else OTHER, before, _ids(draw, generator, 8))
        times[known].append(await _asked(generator, ASKER, text, _ids(draw, generator, 8)))
    return {known: np.array(seconds) for known, seconds in times.items()}


def attack(new: Floats, known: Floats, seed: int = 0) -> Attack:
    """Guesses by the times which texts are known."""
    rng = np.random.Generator(np.random.Philox(seed))
    aucs, savings = np.empty(_NUM_SAMPLES), np.empty(_NUM_SAMPLES)
    for i in range(_NUM_SAMPLES):
        some_new, some_known = rng.choice(new, len(new)), rng.choice(known, len(known))
        aucs[i] = auc(some_new, some_known)
        savings[i] = _saved_ms(some_new, some_known)
    return Attack(
        Interval(auc(new, known), *np.quantile(aucs, [0.025, 0.975])),
        Interval(_saved_ms(new, known), *np.quantile(savings, [0.025, 0.975])),
        permutation_p(new, known, rng),
    )


def auc(new: Floats, known: Floats) -> float:
    """Share of pairs in which the known text's time is the shorter one; equal ones count half."""
    less = (known[:, None] < new[None, :]).mean()
    return float(less + (known[:, None] == new[None, :]).mean() / 2)


def permutation_p(new: Floats, known: Floats, rng: np.random.Generator) -> float:
    """Two-sided: how likely so uneven pairs are, were the labels a coin's."""
    both, observed, as_large = np.concatenate([new, known]), abs(auc(new, known) - 0.5), 0
    for _ in range(_NUM_SAMPLES):
        mixed = rng.permutation(both)
        as_large += abs(auc(mixed[: len(new)], mixed[len(new) :]) - 0.5) >= observed
    return (as_large + 1) / (_NUM_SAMPLES + 1)


def _saved_ms(new: Floats, known: Floats) -> float:
    return float(1000 * (np.median(new) - np.median(known)))


def _ids(draw: random.Random, generator: Generator, num_tokens: int) -> tuple[int, ...]:
    return tuple(draw.randrange(3, generator.model.spec.vocab_size) for _ in range(num_tokens))


async def _asked(generator: Generator, tenant: str, text: Sequence[int], question: Sequence[int]) -> float:
    ctx = RequestContext.create(tenant=tenant, deadline_ms=600_000)
    order = GenerationOrder(
        (tuple(text),),
        (tuple(question),),
        prefix=(),
        reuse=Reuse(ReuseMode.REORDERED),
        sampling=SamplingParams(max_tokens=1, ignore_eos=True),
    )
    began = time.perf_counter()
    plan = await generator.plan(ctx, order)
    first = 0.0
    async with aclosing(generator.generate(ctx, plan)) as events:
        async for event in events:
            if isinstance(event, TokenEvent) and not first:
                first = time.perf_counter() - began
    await asyncio.sleep(0)
    return first
