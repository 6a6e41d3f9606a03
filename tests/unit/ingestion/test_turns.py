"""Places to read documents are shared among tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from services.ingestion.parsing.turns import Turns


class Readers:
    """``order``: who got a place, in the order of getting it."""

    def __init__(self, num: int) -> None:
        self.turns, self.order = Turns(num), list[str]()
        self._ends: dict[str, asyncio.Event] = {}

    def come(self, *names: str) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._read(name)) for name in names]

    async def leave(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await settle(self.turns)

    async def _read(self, name: str) -> None:
        self._ends[name] = asyncio.Event()
        async with self.turns.turn(name[0]):
            self.order.append(name)
            await self._ends[name].wait()


async def settle(turns: Turns) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    turns.check_invariants()


async def read(num: int, names: Sequence[str], ends: Sequence[str]) -> list[str]:
    readers = Readers(num)
    tasks = readers.come(*names)
    await settle(readers.turns)
    await readers.leave(*ends)
    await asyncio.gather(*tasks)
    await settle(readers.turns)
    return readers.order


async def test_who_comes_while_there_are_places_waits_for_nobody() -> None:
    readers = Readers(2)
    tasks = readers.come("a1", "b1")
    await settle(readers.turns)
    assert readers.order == ["a1", "b1"]
    await readers.leave("a1", "b1")
    await asyncio.gather(*tasks)


async def test_a_tenant_with_many_documents_does_not_stand_in_front_of_one_with_few() -> None:
    order = await read(2, ["a1", "a2", "a3", "a4", "b1", "c1"], ["a1", "b1", "c1", "a2", "a3", "a4"])
    assert order == ["a1", "a2", "b1", "c1", "a3", "a4"]


async def test_among_equals_the_one_that_was_served_last_is_behind() -> None:
    order = await read(1, ["a1", "a2", "b1", "a3", "b2"], ["a1", "a2", "b1", "a3", "b2"])
    assert order == ["a1", "a2", "b1", "a3", "b2"]


async def test_who_goes_away_while_waiting_or_just_when_it_is_his_turn_leaves_the_place_to_others() -> None:
    readers = Readers(1)
    first, gone, called, last = readers.come("a1", "b1", "c1", "d1")
    await settle(readers.turns)
    gone.cancel()
    await settle(readers.turns)
    readers._ends["a1"].set()
    while not readers.turns._held["c"]:
        await asyncio.sleep(0)
    called.cancel()
    await settle(readers.turns)
    assert readers.order == ["a1", "d1"]
    await readers.leave("d1")
    await asyncio.gather(first, last)
