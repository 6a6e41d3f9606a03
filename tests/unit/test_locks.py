from __future__ import annotations

import asyncio

import pytest

from shared.locks import Locks


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
    assert len(locks) == 0
    with pytest.raises(ZeroDivisionError):
        async with locks.hold("a"):
            raise ZeroDivisionError
    assert len(locks) == 0
