"""Events of a stream that come in fewer messages: the same events in the same order, the first of each kind
and the end at once, and each by itself where nobody asked for less."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest

from protos.kvquilt.v1 import common_pb2, generation_pb2
from shared.clients.generation import GenerationClient
from shared.clients.service import meta_of
from shared.errors import InvalidRequest, Unavailable
from shared.generation.asked import SamplingParams
from shared.generation.orders import GenerationOrder
from shared.generation.told import (
    BranchDoneEvent,
    DoneEvent,
    FinishReason,
    GenerationEvent,
    Timings,
    TokenEvent,
    Usage,
)
from shared.principals.callers import OPERATOR
from shared.request import RequestContext
from shared.streams import gathered
from shared.wire.gathering import in_messages, taken_apart
from shared.wire.told import GENERATED
from tests.virtual_time import run_virtually, virtual_loop

Timed = Sequence[tuple[float, str]]


async def at(events: Timed, error: Exception | None = None) -> AsyncGenerator[str, None]:
    """Each at its instant, in seconds."""
    loop = asyncio.get_running_loop()
    for instant_s, event in events:
        await asyncio.sleep(max(0.0, instant_s - loop.time()))
        yield event
    if error is not None:
        raise error


def seen(
    events: Timed, interval_s: float, error: Exception | None = None, take_s: float = 0.0
) -> list[tuple[float, list[str]]]:
    """When which lists came, of events whose kind is their first letter. take_s: each costs its taker."""

    async def listen() -> list[tuple[float, list[str]]]:
        lists = []
        async with aclosing(gathered(at(events, error), interval_s, lambda event: event[0])) as came:
            try:
                async for together in came:
                    lists.append((round(virtual_loop().time(), 6), together))
                    await asyncio.sleep(take_s)
            except Unavailable as failed:
                lists.append((round(virtual_loop().time(), 6), [failed.detail]))
        return lists

    return run_virtually(listen())


def test_what_comes_soon_after_a_list_comes_together_in_the_next() -> None:
    tokens = [(0.01 * i, f"t{i}") for i in range(10)]
    assert seen(tokens, 0.034) == [
        (0.0, ["t0"]),
        (0.034, ["t1", "t2", "t3"]),
        (0.068, ["t4", "t5", "t6"]),
        (0.09, ["t7", "t8", "t9"]),
    ]


def test_after_a_pause_an_event_goes_at_once() -> None:
    assert seen([(0.0, "t0"), (1.0, "t1"), (2.0, "t2")], 0.05) == [
        (0.0, ["t0"]),
        (1.0, ["t1"]),
        (2.0, ["t2"]),
    ]


def test_the_first_of_each_kind_and_the_end_wait_for_nothing() -> None:
    told = [(0.0, "retrieved"), (0.01, "t0"), (0.02, "t1"), (0.03, "t2"), (0.04, "answer"), (0.05, "done")]
    assert seen(told, 10.0) == [
        (0.0, ["retrieved"]),
        (0.01, ["t0"]),
        (0.04, ["t1", "t2", "answer"]),
        (0.05, ["done"]),
    ]


def test_an_error_comes_behind_what_came_before_it() -> None:
    told = [(0.0, "t0"), (0.01, "t1"), (0.02, "t2")]
    assert seen(told, 10.0, Unavailable("gone")) == [(0.0, ["t0"]), (0.02, ["t1", "t2"]), (0.02, ["gone"])]


def test_who_takes_slowly_is_told_more_at_a_time() -> None:
    tokens = [(0.01 * i, f"t{i}") for i in range(10)]
    lists = seen(tokens, 0.0, take_s=0.045)
    assert [len(together) for _, together in lists] == [1, 4, 5]


@pytest.mark.parametrize("seed", range(50))
def test_all_come_once_and_in_order(seed: int) -> None:
    draw = random.Random(seed)
    instants = sorted(draw.choice((0.0, draw.random())) for _ in range(draw.randrange(40)))
    told = [(instant, f"{draw.choice('abc')}{i}") for i, instant in enumerate(instants)]
    interval_s = draw.choice((0.0, 0.01, 0.2, 5.0))
    lists = seen(told, interval_s, take_s=draw.choice((0.0, 0.03)))
    assert [event for _, together in lists for event in together] == [event for _, event in told]
    assert all(together for _, together in lists)
    firsts = {event[0]: event for _, event in reversed(told)}
    for (came_s, _), (next_s, together) in itertools.pairwise(lists):
        ends = told[-1][1] in together
        assert ends or next_s - came_s >= interval_s - 1e-6 or set(firsts.values()) & set(together)


async def test_closing_it_closes_what_it_is_made_of() -> None:
    ended = []

    async def endless() -> AsyncGenerator[str, None]:
        try:
            while True:
                await asyncio.sleep(0)
                yield "t"
        finally:
            ended.append(True)

    async with aclosing(gathered(endless(), 5.0, str)) as lists:
        await anext(lists)
    assert ended == [True]


EVENTS: list[GenerationEvent] = [TokenEvent(0, 0, i, "word", -0.5) for i in range(7)]
EVENTS += [BranchDoneEvent(0, 0, FinishReason.STOP, "", 7), DoneEvent(Usage(1, 0, 1, 7), Timings())]


async def sent(ctx: RequestContext) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
    async def events() -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        for event in EVENTS:
            yield GENERATED.to_pb(event)

    async with aclosing(in_messages(ctx, events())) as messages:
        async for message in messages:
            yield generation_pb2.GenerateResponse.FromString(message.SerializeToString())


@pytest.mark.parametrize("interval_ms", [0, 1, 50, 10_000])
async def test_events_are_the_same_by_whatever_messages(interval_ms: int) -> None:
    ctx = RequestContext.create(stream_interval_ms=interval_ms)
    assert [event async for event in taken_apart(sent(ctx), GENERATED.of)] == EVENTS
    messages = [message async for message in sent(ctx)]
    if interval_ms == 0:
        assert len(messages) == len(EVENTS)
        assert not any(message.more for message in messages)
    else:
        assert len(messages) < len(EVENTS)
        assert not any(later.more for message in messages for later in message.more)


def test_an_interval_travels_with_the_request_and_is_bounded() -> None:
    ctx = OPERATOR.context(common_pb2.RequestMeta(stream_interval_ms=250))
    assert ctx.stream_interval_ms == meta_of(ctx).stream_interval_ms == 250
    assert OPERATOR.context(common_pb2.RequestMeta()).stream_interval_ms == 0
    with pytest.raises(InvalidRequest, match=r"^meta\.stream_interval_ms: must be at most 10000, got 10001$"):
        OPERATOR.context(common_pb2.RequestMeta(stream_interval_ms=10_001))


class Old:
    """A service of before there were intervals."""

    async def unary(self, *args: object) -> object:
        raise NotImplementedError

    async def stream(self, *args: object) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        for event in EVENTS:
            yield GENERATED.to_pb(event)


async def test_a_service_that_knows_no_interval_is_understood() -> None:
    client = GenerationClient(Old())  # type: ignore[arg-type]
    order = GenerationOrder(chunks=(), questions=((1,),), sampling=SamplingParams(max_tokens=7))
    ctx = RequestContext.create(stream_interval_ms=50)
    assert [event async for event in client.generate(ctx, order)] == EVENTS
