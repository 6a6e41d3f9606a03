"""Several streams as one: in which order values come, and what an error and a closing end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from shared.streams import merged


async def values(*them: int, error: Exception | None = None) -> AsyncGenerator[int, None]:
    for value in them:
        await asyncio.sleep(0)
        yield value
    if error is not None:
        raise error


async def endless(ended: list[str]) -> AsyncGenerator[int, None]:
    try:
        while True:
            await asyncio.sleep(0)
            yield 0
    finally:
        ended.append("closed")


async def test_values_of_all_come_in_turn() -> None:
    assert [v async for v in merged([values(1, 3, 5), values(2, 4)])] == [1, 2, 3, 4, 5]
    assert [v async for v in merged([])] == []


async def test_the_first_error_ends_the_others() -> None:
    ended: list[str] = []
    with pytest.raises(ZeroDivisionError):
        async for _ in merged([endless(ended), values(error=ZeroDivisionError())]):
            pass
    assert ended == ["closed"]


async def test_a_patient_one_tells_what_the_others_say_before_the_error() -> None:
    stream = merged([values(1, error=ZeroDivisionError()), values(2, 3, 4)], patient=True)
    assert sorted([await anext(stream) for _ in range(4)]) == [1, 2, 3, 4]
    with pytest.raises(ZeroDivisionError):
        await anext(stream)


async def test_closing_closes_all() -> None:
    ended: list[str] = []
    async with aclosing(merged([endless(ended), endless(ended)])) as stream:
        await anext(stream)
    assert ended == ["closed", "closed"]
