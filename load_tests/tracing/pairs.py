"""Asks questions in pairs, traced and not, and finds what tracing added, with its interval."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np

from shared.answer import AnswerEvent
from shared.generation.told import TokenEvent
from shared.measuring.paired import Interval
from shared.measuring.report import Measurement, measured

MS = 1000
Ask = Callable[[int, bool], AsyncGenerator[AnswerEvent, None]]
"""The answer to question number n, traced or not."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds from the question to its first token, and to its end."""

    first_token_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Pair:
    """The same question, without and with a trace."""

    quiet: Times
    traced: Times


async def ask_in_pairs(ask: Ask, num_pairs: int, told: Callable[[int], None] = lambda n: None) -> list[Pair]:
    """One question at a time; which of a pair comes first alternates."""
    pairs = []
    for number in range(num_pairs):
        first = number % 2 == 1
        one, other = [await _timed(ask(number, traced)) for traced in (first, not first)]
        pairs.append(Pair(other, one) if first else Pair(one, other))
        told(number + 1)
    return pairs


async def _timed(answer: AsyncGenerator[AnswerEvent, None]) -> Times:
    began, first = time.perf_counter(), 0.0
    async with aclosing(answer) as events:
        async for event in events:
            if not first and isinstance(event, TokenEvent):
                first = time.perf_counter() - began
    return Times(first, time.perf_counter() - began)


def added(quiet: Sequence[float], traced: Sequence[float], num_samples: int = 9999) -> Interval:
    """The median over pairs of what tracing added, with its 95 % interval (bootstrap over pairs)."""
    differences = np.array(traced) - np.array(quiet)
    shape = (num_samples, len(differences))
    picks = np.random.Generator(np.random.Philox(0)).integers(0, len(differences), shape)
    low, high = np.percentile(np.median(differences[picks], axis=1), [2.5, 97.5])
    return Interval(float(np.median(differences)), float(low), float(high))


def findings(pairs: Sequence[Pair]) -> Iterator[Measurement]:
    """A row of times and two of what was added, in milliseconds and in percent of the median without it, for
    the first token and for the whole answer."""
    for name, field in (("first token", "first_token_s"), ("whole answer", "total_s")):
        quiet: list[float] = [getattr(pair.quiet, field) * MS for pair in pairs]
        traced: list[float] = [getattr(pair.traced, field) * MS for pair in pairs]
        yield measured(f"{name}, traced, p50", traced, "ms", baseline=quiet)
        more, percent = added(quiet, traced), 100 / float(np.median(quiet))
        for what, unit, times in (("time added", "ms", 1.0), ("added", "%", percent)):
            yield Measurement(
                f"{name}, {what} by tracing",
                times * more.value,
                unit,
                min=times * more.low,
                max=times * more.high,
                n=len(pairs),
            )
