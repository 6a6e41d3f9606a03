"""Asks the same over gRPC and over HTTP, in pairs, and finds what HTTP added, with its interval."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from load_tests.service.driver import Ask
from load_tests.service.overhead import timed
from load_tests.service.sample import MS, Sample
from shared.measuring.paired import median_of
from shared.measuring.report import Measurement, measured

TTFT_AIM_MS, TOKEN_AIM_MS = 3.0, 1.0
TimedMs = Callable[[Ask, int], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class DoorPair:
    """Milliseconds: to the first token, or from one to the next."""

    grpc: float
    http: float


async def in_pairs(timed_ms: TimedMs, grpc: Ask, http: Ask, num_pairs: int) -> list[DoorPair]:
    """One way right after the other; which comes first alternates.

    Raises:
        KvquiltError: an answer failed.
    """
    pairs = []
    for number in range(num_pairs):
        first, second = (http, grpc) if number % 2 else (grpc, http)
        one, other = await timed_ms(first, number), await timed_ms(second, number)
        pairs.append(DoorPair(other, one) if number % 2 else DoorPair(one, other))
    return pairs


async def first_token_ms(ask: Ask, number: int) -> float:
    sample = await timed(ask, number)
    assert sample.first_token_s is not None, "an answer without a token"
    return (sample.first_token_s - sample.sent_s) * MS


def token_ms(num_streams: int) -> TimedMs:
    """Of so many answers at once: from one token to the next, in the mean."""

    async def ask_all(ask: Ask, number: int) -> float:
        numbers = range(number * num_streams, (number + 1) * num_streams)
        samples = await asyncio.gather(*(timed(ask, one) for one in numbers))
        return sum(map(_between_ms, samples)) / num_streams

    return ask_all


def _between_ms(sample: Sample) -> float:
    """Several tokens may have come in one piece, so they are counted at the end."""
    assert sample.reply is not None
    assert sample.first_token_s is not None
    assert sample.last_token_s is not None
    return (sample.last_token_s - sample.first_token_s) * MS / (sample.reply.usage.generated_tokens - 1)


def findings(name: str, pairs: Sequence[DoorPair], aim_ms: float | None) -> Iterator[Measurement]:
    """Both medians, and that of the differences with its 95 % interval and what of the aim it takes; None:
    there is no aim."""
    http, grpc = [pair.http for pair in pairs], [pair.grpc for pair in pairs]
    yield measured(f"{name}_http", http, "ms", baseline=grpc)
    more = median_of([pair.http - pair.grpc for pair in pairs])
    yield Measurement(
        f"{name}_http_added", more.value, "ms", limit=aim_ms, min=more.low, max=more.high, n=len(pairs)
    )
