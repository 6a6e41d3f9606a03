from __future__ import annotations

import asyncio

import pytest

from services.kv_store.lanes import Lanes, Locks


async def test_the_most_urgent_of_those_that_wait_goes_next() -> None:
    lanes, went = Lanes(1), list[int]()

    async def go(order: int) -> None:
        async with lanes.lane((order,)):
            went.append(order)

    async with lanes.lane((0,)):
        waiting = [asyncio.create_task(go(order)) for order in (3, 1, 2, 1)]
        await asyncio.sleep(0)
        waiting[2].cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*waiting, return_exceptions=True)
    assert went == [1, 1, 3]


async def test_no_more_go_at_a_time_than_there_are_lanes_whoever_goes_away() -> None:
    lanes, running, most = Lanes(3), 0, 0

    async def go(n: int) -> None:
        nonlocal running, most
        async with lanes.lane((n % 2,)):
            running += 1
            most = max(most, running)
            try:
                await asyncio.sleep(0)
            finally:
                running -= 1
            if n % 5 == 0:
                raise ValueError

    tasks = [asyncio.create_task(go(n)) for n in range(40)]
    await asyncio.sleep(0)
    for task in tasks[::7]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (running, most) == (0, 3)
    async with asyncio.timeout(5), lanes.lane((0,)), lanes.lane((0,)), lanes.lane((0,)):
        pass  # none was lost


async def test_one_at_a_time_per_name_and_nothing_is_kept_of_names() -> None:
    locks, inside = Locks(), set[str]()

    async def go(name: str) -> None:
        async with locks.hold(name):
            assert name not in inside
            inside.add(name)
            await asyncio.sleep(0)
            inside.discard(name)

    tasks = [asyncio.create_task(go(name)) for name in "aabbab"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert locks.num_names == 0
    with pytest.raises(ZeroDivisionError):
        async with locks.hold("a"):
            raise ZeroDivisionError
    assert locks.num_names == 0
