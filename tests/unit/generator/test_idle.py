"""What nobody waits for is done while nothing else is, and given up for whoever comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

import pytest

from services.generator.idle import IdleTime
from shared.errors import DeadlineExceeded, Overloaded
from shared.request import RequestContext
from tests.virtual_time import run_virtually


@pytest.fixture
def idle() -> Iterator[IdleTime]:
    idle = IdleTime()
    yield idle
    idle.check_invariants()


class Work:
    """Yields 1, and 2 once it is let."""

    def __init__(self) -> None:
        self.begun = self.ended = False
        self.let = asyncio.Event()

    async def events(self) -> AsyncGenerator[int, None]:
        self.begun = True
        try:
            yield 1
            await self.let.wait()
            yield 2
        finally:
            self.ended = True


def spent(idle: IdleTime, work: Work, deadline_ms: int = 60_000) -> asyncio.Task[list[int]]:
    async def collect() -> list[int]:
        return [event async for event in idle.spend(ctx, work.events())]

    ctx = RequestContext.create(deadline_ms=deadline_ms)
    return asyncio.create_task(collect())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_is_idle_already_is_used_at_once(idle: IdleTime) -> None:
    work = Work()
    task = spent(idle, work)
    await settle()
    assert work.begun
    work.let.set()
    assert await task == [1, 2]
    assert work.ended


async def test_it_is_not_begun_while_somebody_waits_for_something_else(idle: IdleTime) -> None:
    work = Work()
    with idle.taken():
        with idle.taken():
            task = spent(idle, work)
            await settle()
        await settle()
        assert not work.begun
    await settle()
    assert work.begun
    work.let.set()
    assert await task == [1, 2]


async def test_it_is_given_up_for_whoever_comes_and_what_it_held_is_closed(idle: IdleTime) -> None:
    works = [Work(), Work()]
    tasks = [spent(idle, work) for work in works]
    await settle()
    with idle.taken():
        await settle()
        assert all(work.ended for work in works)
        idle.check_invariants()
        for task in tasks:
            with pytest.raises(Overloaded, match="idle: something else was asked meanwhile; ask again"):
                await task


async def test_whoever_comes_behind_it_gives_up_nothing(idle: IdleTime) -> None:
    work = Work()
    work.let.set()
    assert await spent(idle, work) == [1, 2]
    with idle.taken():
        pass


async def test_a_caller_that_goes_away_ends_it(idle: IdleTime) -> None:
    work = Work()
    task = spent(idle, work)
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.ended


def test_it_waits_no_longer_than_its_deadline() -> None:
    async def wait() -> None:
        idle = IdleTime()
        with idle.taken():
            await spent(idle, Work(), deadline_ms=2000)

    with pytest.raises(DeadlineExceeded, match="waiting for idle time"):
        run_virtually(wait())
