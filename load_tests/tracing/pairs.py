"""Asks questions in pairs, traced and not, and finds what tracing added, with its interval."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from shared.answer import AnswerEvent
from shared.generation.told import TokenEvent
from shared.measuring.paired import median_of
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


def findings(pairs: Sequence[Pair]) -> Iterator[Measurement]:
    """A row of times and two of what was added, in milliseconds and in percent of the median without it, for
    the first token and for the whole answer."""
    for name, field in (("first token", "first_token_s"), ("whole answer", "total_s")):
        quiet: list[float] = [getattr(pair.quiet, field) * MS for pair in pairs]
        traced: list[float] = [getattr(pair.traced, field) * MS for pair in pairs]
        yield measured(f"{name}, traced, p50", traced, "ms", baseline=quiet)
        more = median_of([one - other for one, other in zip(traced, quiet, strict=True)])
        percent = 100 / statistics.median(quiet)
        for what, unit, times in (("time added", "ms", 1.0), ("added", "%", percent)):
            yield Measurement(
                f"{name}, {what} by tracing",
                times * more.value,
                unit,
                min=times * more.low,
                max=times * more.high,
                n=len(pairs),
            )
