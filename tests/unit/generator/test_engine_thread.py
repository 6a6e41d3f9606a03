"""The bridge between asyncio and an engine, with an engine whose every event is in the test's hands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace

import pytest

from services.generator.engine_thread import EngineThread, Request
from services.generator.selection import Decision
from shared.errors import CorruptData, DeadlineExceeded, InvalidRequest, Overloaded, Unavailable
from shared.generation.asked import GenerateRequest
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import DoneEvent, Event, FailedEvent, Timings, TokenEvent, Usage
from shared.request import RequestContext

REQUEST = GenerateRequest("", (), (), ((1,),))
DONE = DoneEvent(Usage(1, 0, 1, 2), Timings())


def token(i: int) -> TokenEvent:
    return TokenEvent(0, 0, i, "", -1.0)


class PuppetEngine:
    """Runs until it is closed or told to die."""

    def __init__(self) -> None:
        self.sinks: dict[str, Callable[[Event], None]] = {}
        self.requests: list[Request] = []
        self.cancelled: list[str] = []
        self.decided: list[tuple[str, ReuseMode, Recompute]] = []
        self.refusal: Exception | None = None
        self.death: Exception | None = None
        self._end = threading.Event()

    def submit(self, request: Request, sink: Callable[[Event], None]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)
        self.sinks[request.request_id] = sink

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def decide(self, request_id: str, reuse: ReuseMode, recompute: Recompute) -> None:
        self.decided.append((request_id, reuse, recompute))

    def run(self) -> None:
        self._end.wait()
        if self.death is not None:
            raise self.death

    def close(self) -> None:
        self._end.set()

    def die(self) -> None:
        self.death = RuntimeError("out of memory")
        self._end.set()

    def say(self, *events: Event, to: int = 0) -> None:
        """From a thread of its own, as the real one does."""
        sink = self.sinks[self.requests[to].request_id]
        speaker = threading.Thread(target=lambda: [sink(e) for e in events])
        speaker.start()
        speaker.join()


@pytest.fixture
def engine() -> PuppetEngine:
    return PuppetEngine()


@pytest.fixture
async def bridge(engine: PuppetEngine) -> AsyncIterator[EngineThread]:
    bridge = EngineThread(engine)
    yield bridge
    bridge.check_invariants()
    bridge.close()


def ctx(deadline_ms: int = 60_000) -> RequestContext:
    return RequestContext.create("r", deadline_ms=deadline_ms)


async def collect(bridge: EngineThread, into: list[Event], context: RequestContext | None = None) -> None:
    async with aclosing(bridge.stream(REQUEST, context or ctx())) as events:
        async for event in events:
            into.append(event)  # noqa: PERF401 - what came before a failure counts, too


async def started(
    bridge: EngineThread, engine: PuppetEngine, into: list[Event], context: RequestContext | None = None
) -> asyncio.Task[None]:
    count = len(engine.requests)
    task = asyncio.create_task(collect(bridge, into, context))
    while len(engine.requests) == count and not task.done():
        await asyncio.sleep(0)
    return task


async def test_events_arrive_in_order_and_the_last_one_ends_the_stream(
    bridge: EngineThread, engine: PuppetEngine
) -> None:
    got: list[Event] = []
    task = await started(bridge, engine, got)
    engine.say(token(1), token(2), DONE)
    await task
    assert got == [token(1), token(2), DONE]
    assert engine.cancelled == []


async def test_equal_request_ids_of_two_callers_do_not_meet(
    bridge: EngineThread, engine: PuppetEngine
) -> None:
    first: list[Event] = []
    second: list[Event] = []
    tasks = [await started(bridge, engine, first), await started(bridge, engine, second)]
    assert engine.requests[0].request_id != engine.requests[1].request_id
    engine.say(token(2), DONE, to=1)
    engine.say(token(1), DONE, to=0)
    await asyncio.gather(*tasks)
    assert (first[0], second[0]) == (token(1), token(2))


async def test_who_waits_for_events_takes_the_idle_time_and_who_asked_for_it_does_not(
    bridge: EngineThread, engine: PuppetEngine
) -> None:
    async def in_idle_time() -> list[Event]:
        return [
            event
            async for event in bridge.idle.spend(ctx(), bridge.stream(replace(REQUEST, idle=True), ctx()))
        ]

    got: list[Event] = []
    waiting = await started(bridge, engine, got)
    idle = asyncio.create_task(in_idle_time())
    await asyncio.sleep(0)
    assert len(engine.requests) == 1
    engine.say(DONE)
    await waiting
    while len(engine.requests) == 1:
        await asyncio.sleep(0)
    engine.say(token(1), DONE, to=1)
    assert await idle == [token(1), DONE]
    assert engine.cancelled == []

    idle = asyncio.create_task(in_idle_time())
    while len(engine.requests) == 2:
        await asyncio.sleep(0)
    waiting = await started(bridge, engine, got)
    with pytest.raises(Overloaded):
        await idle
    assert engine.cancelled == [engine.requests[2].request_id]
    engine.say(DONE, to=3)
    await waiting


async def test_the_deadline_reaches_the_engine(bridge: EngineThread, engine: PuppetEngine) -> None:
    context = ctx()
    task = await started(bridge, engine, [], context)
    assert engine.requests[0].deadline_s == context.deadline_s
    engine.say(DONE)
    await task


async def test_a_refusal_is_raised_and_nothing_is_left(bridge: EngineThread, engine: PuppetEngine) -> None:
    engine.refusal = InvalidRequest("questions[0]: no")
    with pytest.raises(InvalidRequest, match="questions"):
        await collect(bridge, [])


async def test_a_failure_ends_the_stream_with_its_error(bridge: EngineThread, engine: PuppetEngine) -> None:
    got: list[Event] = []
    task = await started(bridge, engine, got)
    engine.say(token(1), FailedEvent(CorruptData("gone")))
    with pytest.raises(CorruptData):
        await task
    assert got == [token(1)]
    assert engine.cancelled == []


async def test_a_consumer_that_closes_the_stream_cancels_the_request(
    bridge: EngineThread, engine: PuppetEngine
) -> None:
    stream = bridge.stream(REQUEST, ctx())
    first = asyncio.ensure_future(anext(stream))
    while not engine.requests:
        await asyncio.sleep(0)
    engine.say(token(1))
    assert await first == token(1)
    await stream.aclose()
    assert engine.cancelled == [engine.requests[0].request_id]


async def test_a_consumer_that_is_cancelled_while_waiting_cancels_the_request(
    bridge: EngineThread, engine: PuppetEngine
) -> None:
    task = await started(bridge, engine, [])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.cancelled == [engine.requests[0].request_id]


async def test_a_silent_engine_does_not_outlast_the_deadline(
    bridge: EngineThread, engine: PuppetEngine
) -> None:
    with pytest.raises(DeadlineExceeded):
        await collect(bridge, [], ctx(deadline_ms=1))
    assert engine.cancelled == [engine.requests[0].request_id]


async def test_a_dying_engine_fails_all_in_flight_and_all_later_ones(
    bridge: EngineThread, engine: PuppetEngine
) -> None:
    got: list[Event] = []
    tasks = [await started(bridge, engine, got), await started(bridge, engine, [])]
    engine.say(token(1))
    assert bridge.alive
    engine.die()
    for task in tasks:
        with pytest.raises(Unavailable):
            await task
    assert got == [token(1)]
    assert not bridge.alive
    with pytest.raises(Unavailable):
        await collect(bridge, [])


async def test_events_of_an_engine_that_outlives_its_listener_fall_on_the_floor(
    bridge: EngineThread, engine: PuppetEngine
) -> None:
    task = await started(bridge, engine, [])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    engine.say(token(1), DONE)


async def deciding(bridge: EngineThread, decision: asyncio.Future[Decision]) -> list[Event]:
    async with aclosing(bridge.stream(REQUEST, ctx(), decision=decision)) as events:
        return [event async for event in events]


async def test_a_decision_reaches_the_engine_as_soon_as_it_is_made(
    bridge: EngineThread, engine: PuppetEngine
) -> None:
    decision: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(deciding(bridge, decision))
    while not engine.requests:
        await asyncio.sleep(0)
    assert engine.decided == []
    decision.set_result(Decision(ReuseMode.TOKENS, Recompute(tokens=(1, 2)), 0.1))
    while not engine.decided:
        await asyncio.sleep(0)
    assert engine.decided == [(engine.requests[0].request_id, ReuseMode.TOKENS, Recompute(tokens=(1, 2)))]
    engine.say(DONE)
    assert await task == [DONE]


async def test_a_decision_that_fails_fails_the_request(bridge: EngineThread, engine: PuppetEngine) -> None:
    decision: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
    decision.set_exception(InvalidRequest("recompute.tokens: no"))
    with pytest.raises(InvalidRequest, match="recompute"):
        await deciding(bridge, decision)
    assert engine.cancelled == [engine.requests[0].request_id]
    assert engine.decided == []


async def test_nobody_decides_for_who_went_away(bridge: EngineThread, engine: PuppetEngine) -> None:
    decision: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(deciding(bridge, decision))
    while not engine.requests:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert decision.cancelled()
    assert engine.decided == []


async def test_a_request_has_its_callers_priority(bridge: EngineThread, engine: PuppetEngine) -> None:
    task = await started(bridge, engine, [], RequestContext.create("r", priority=-3))
    assert engine.requests[0].priority == -3
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
