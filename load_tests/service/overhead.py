"""Measures what the service adds to the engine's own time: to a first token, and to every token of several
streams; and what HTTP adds to gRPC.

The first two compare what the client saw with what the engine says it needed for the very same requests, so
that the engine's speed, and whatever else the machine does to it, cancels out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from load_tests.service.driver import Ask
from load_tests.service.sample import MS, OK, Sample


async def one_by_one(ask: Ask, numbers: Sequence[int]) -> list[Sample]:
    """One request at a time: nobody waits for another.

    Raises:
        KvquiltError: one failed; without load that is not to be expected.
    """
    return [await timed(ask, number) for number in numbers]


async def added_per_token_ms(ask: Ask, numbers: Sequence[int]) -> float:
    """Sends all at once. Wall time from the first request to the last answer, less the longest time that the
    engine had one of them, divided by all tokens that were streamed.

    Raises:
        KvquiltError: one failed.
    """
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    samples = await asyncio.gather(*(timed(ask, number) for number in numbers))
    wall_ms = (loop.time() - started_s) * MS
    replies = [sample.reply for sample in samples if sample.reply is not None]
    num_tokens = sum(reply.usage.generated_tokens for reply in replies)
    return (wall_ms - max(reply.timings.total_s for reply in replies) * MS) / num_tokens


async def both_ways(one: Ask, other: Ask, numbers: Sequence[int]) -> list[tuple[Sample, Sample]]:
    """Each request both ways, one at a time; which comes first alternates.

    Raises:
        KvquiltError: one failed.
    """
    pairs = []
    for turn, number in enumerate(numbers):
        first, second = (other, one) if turn % 2 else (one, other)
        earlier, later = await timed(first, number), await timed(second, number)
        pairs.append((later, earlier) if turn % 2 else (earlier, later))
    return pairs


async def at_once_both_ways(
    one: Ask, other: Ask, numbers: Sequence[int], rounds: int
) -> tuple[list[Sample], list[Sample]]:
    """All requests at once one way, then all at once the other way, and so on; which begins alternates.

    Raises:
        KvquiltError: one failed.
    """
    ways: tuple[list[Sample], list[Sample]] = ([], [])
    for turn in range(2 * rounds):
        way = (turn + turn // 2) % 2
        ways[way].extend(await asyncio.gather(*(timed((one, other)[way], number) for number in numbers)))
    return ways


async def timed(ask: Ask, number: int) -> Sample:
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    flight = Sample(number, now_s, now_s)
    reply = await ask(number, lambda branch: flight.token(loop.time(), branch))
    return flight.end(loop.time(), OK, reply=reply)
