"""Who gets at the one thread, and who does not."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator

import pytest

from services.selector.worker_thread import Turn, WorkerThread
from shared.errors import DeadlineExceeded, Overloaded, Unavailable
from shared.principals.principal import Principal
from shared.request import RequestContext

CTX = RequestContext.create(deadline_ms=36_000_000)


class Busy:
    """Holds the thread until it is let go."""

    def __init__(self) -> None:
        self.began, self.let_go = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.began.set()
        assert self.let_go.wait(30)


@pytest.fixture
async def thread() -> AsyncIterator[WorkerThread]:
    worker = WorkerThread("test", max_waiting=4)
    yield worker
    worker.check_invariants()
    await worker.close()


async def occupied(thread: WorkerThread) -> tuple[Busy, asyncio.Task[None]]:
    busy = Busy()
    task = asyncio.create_task(thread.run(CTX, Turn.INGESTION, busy))
    await asyncio.to_thread(busy.began.wait, 30)
    return busy, task


async def until_waiting(thread: WorkerThread, number: int) -> None:
    while thread.num_waiting != number:
        await asyncio.sleep(0)


async def test_questions_go_first_and_equals_in_the_order_they_came(thread: WorkerThread) -> None:
    busy, holder = await occupied(thread)
    done: list[str] = []
    tasks = []
    for turn, name in (
        (Turn.INGESTION, "i1"),
        (Turn.QUESTION, "q1"),
        (Turn.INGESTION, "i2"),
        (Turn.QUESTION, "q2"),
    ):
        tasks.append(asyncio.create_task(thread.run(CTX, turn, lambda name=name: done.append(name))))  # type: ignore[misc]
        await until_waiting(thread, len(tasks))
    busy.let_go.set()
    await asyncio.gather(holder, *tasks)
    assert done == ["q1", "q2", "i1", "i2"]


async def test_one_at_a_time_and_the_loop_stays_free(thread: WorkerThread) -> None:
    busy, holder = await occupied(thread)
    second = asyncio.create_task(thread.run(CTX, Turn.QUESTION, threading.get_ident))
    await until_waiting(thread, 1)  # the loop runs although the thread does not answer
    busy.let_go.set()
    assert await second != threading.get_ident()
    await holder


async def test_whoever_is_cancelled_or_too_late_costs_nothing(thread: WorkerThread) -> None:
    busy, holder = await occupied(thread)
    computed: list[str] = []
    gone = asyncio.create_task(thread.run(CTX, Turn.QUESTION, lambda: computed.append("gone")))
    late = asyncio.create_task(
        thread.run(
            RequestContext("r", Principal.operator("t"), 0.0), Turn.QUESTION, lambda: computed.append("late")
        )
    )
    kept = asyncio.create_task(thread.run(CTX, Turn.INGESTION, lambda: computed.append("kept")))
    await until_waiting(thread, 3)
    gone.cancel()
    await until_waiting(thread, 2)
    busy.let_go.set()
    with pytest.raises(DeadlineExceeded):
        await late
    await asyncio.gather(holder, kept)
    assert computed == ["kept"]


async def test_the_thread_is_not_given_away_while_a_cancelled_call_still_runs(thread: WorkerThread) -> None:
    busy, holder = await occupied(thread)
    holder.cancel()
    await asyncio.gather(holder, return_exceptions=True)
    second = asyncio.create_task(thread.run(CTX, Turn.QUESTION, lambda: busy.let_go.is_set()))
    await until_waiting(thread, 1)
    busy.let_go.set()
    assert await second


async def test_more_than_may_wait_are_refused(thread: WorkerThread) -> None:
    busy, holder = await occupied(thread)
    waiting = [asyncio.create_task(thread.run(CTX, Turn.QUESTION, int)) for _ in range(4)]
    await until_waiting(thread, 4)
    with pytest.raises(Overloaded, match="retry later"):
        await thread.run(CTX, Turn.QUESTION, int)
    busy.let_go.set()
    assert await asyncio.gather(*waiting) == [0] * 4
    await holder


async def test_what_a_call_raises_reaches_its_caller_and_nobody_else(thread: WorkerThread) -> None:
    with pytest.raises(ZeroDivisionError):
        await thread.run(CTX, Turn.QUESTION, lambda: 1 // 0)
    assert await thread.run(CTX, Turn.QUESTION, lambda: 7) == 7


async def test_any_mix_of_callers_that_give_up_leaves_the_thread_free(thread: WorkerThread) -> None:
    chance = random.Random(0)
    for _ in range(60):
        tasks = [
            asyncio.create_task(thread.run(CTX, chance.choice(list(Turn)), lambda: None)) for _ in range(4)
        ]
        for task in tasks:
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            if chance.random() < 0.5:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        thread.check_invariants()
    assert await asyncio.wait_for(thread.run(CTX, Turn.INGESTION, lambda: 7), 30) == 7


async def test_closing_tells_who_waits() -> None:
    thread = WorkerThread("test", max_waiting=4)
    busy, holder = await occupied(thread)
    waiting = asyncio.create_task(thread.run(CTX, Turn.QUESTION, int))
    await until_waiting(thread, 1)
    busy.let_go.set()
    await thread.close()
    with pytest.raises(Unavailable):
        await waiting
    await holder
    with pytest.raises(Unavailable):
        await thread.run(CTX, Turn.QUESTION, int)
