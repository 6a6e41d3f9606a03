"""Places are shared among tenants, and whoever would come too late is told so."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence

from shared.admission.turns import Turns
from shared.errors import Overloaded


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


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Queue:
    """``served``, ``refused``: who, in order. Every piece of work takes ``work_s``."""

    def __init__(self, num: int = 1, most_waiting: float = float("inf"), work_s: float = 10.0) -> None:
        self.clock, self.work_s = Clock(), work_s
        self.turns = Turns(num, most_waiting, self.clock)
        self.served, self.refused = list[str](), dict[str, float | None]()
        self._ends: deque[asyncio.Event] = deque()
        self._tasks: list[asyncio.Task[None]] = []

    async def come(self, *names: str, within_s: float = float("inf"), weight: float = 1.0) -> None:
        for name in names:
            self._tasks.append(asyncio.create_task(self._work(name, self.clock.now_s + within_s, weight)))
            await settle(self.turns)

    async def end(self, times: int = 1) -> None:
        """The oldest pieces of work, one after the other."""
        for _ in range(times):
            self.clock.now_s += self.work_s
            self._ends.popleft().set()
            await settle(self.turns)

    async def _work(self, name: str, deadline_s: float, weight: float) -> None:
        try:
            async with self.turns.turn(name[0], deadline_s, weight):
                self.served.append(name)
                self._ends.append(end := asyncio.Event())
                await end.wait()
        except Overloaded as error:
            self.refused[name] = error.retry_after_s


async def test_with_a_full_queue_the_last_of_the_tenant_with_most_goes() -> None:
    queue = Queue(most_waiting=3)
    await queue.come("a1", "a2", "a3", "a4", "b1")
    assert list(queue.refused) == ["a4"]
    await queue.come("a5", "b2")
    assert list(queue.refused) == ["a4", "a5", "b2"]
    await queue.end(4)
    assert queue.served == ["a1", "a2", "b1", "a3"]


async def test_who_could_not_be_served_in_time_is_refused_at_once() -> None:
    queue = Queue()
    await queue.come("a1")
    await queue.come("b1", within_s=5)  # nothing is known yet of how long work takes
    assert queue.refused == {}
    await queue.end(2)
    await queue.come("a2", "a3", "a4")
    await queue.come("a5", within_s=25)
    await queue.come("c1", within_s=35)
    assert queue.refused == {"a5": 20.0}
    await queue.end(4)
    assert queue.served == ["a1", "b1", "a2", "a3", "c1", "a4"]


async def test_who_turns_out_to_be_too_late_is_refused_while_it_waits() -> None:
    queue = Queue()
    await queue.come("a1", "a2", "a3", "a4", within_s=25)
    await queue.end()
    assert list(queue.refused) == ["a3", "a4"]
    await queue.end()
    assert queue.served == ["a1", "a2"]


async def test_a_tenant_of_twice_the_weight_gets_twice_the_places() -> None:
    queue = Queue(num=3)
    await queue.come("z1", "z2", "z3")
    await queue.come("a1", "a2", "a3", "a4", weight=2)
    await queue.come("b1", "b2", "b3")
    await queue.end(3)
    assert Counter(name[0] for name in queue.served[3:]) == {"a": 2, "b": 1}


async def test_who_goes_away_in_the_moment_a_place_is_free_leaves_it_to_the_next() -> None:
    readers = Readers(1)
    first, gone, last = readers.come("a1", "b1", "c1")
    await settle(readers.turns)
    gone.cancel()
    first.cancel()
    await asyncio.gather(first, gone, return_exceptions=True)
    await settle(readers.turns)
    assert readers.order == ["a1", "c1"]
    await readers.leave("c1")
    await last


async def test_of_a_tenant_the_most_urgent_is_next_and_other_tenants_take_no_notice() -> None:
    turns, order = Turns(1), list[str]()

    async def take(name: str, priority: int = 0) -> None:
        async with turns.turn(name[0], priority=priority):
            order.append(name)
            await asyncio.sleep(0)

    tasks = [
        asyncio.create_task(take(name, priority))
        for name, priority in (("a1", 0), ("a2", 0), ("a3", -5), ("b1", 100), ("a4", 7))
    ]
    await asyncio.gather(*tasks)
    await settle(turns)
    assert order == ["a1", "a3", "b1", "a2", "a4"]


async def test_with_a_full_queue_an_urgent_one_takes_the_place_of_its_tenants_least_urgent() -> None:
    turns, refused = Turns(1, most_waiting=2), list[str]()
    ends = asyncio.Event()

    async def take(name: str, priority: int) -> None:
        try:
            async with turns.turn("a", priority=priority):
                await ends.wait()
        except Overloaded:
            refused.append(name)

    tasks = []
    for name, priority in (("works", 0), ("first", 3), ("least", 5), ("equal", 5), ("urgent", 4)):
        tasks.append(asyncio.create_task(take(name, priority)))
        await settle(turns)
    assert refused == ["equal", "least"]
    ends.set()
    await asyncio.gather(*tasks)
    await settle(turns)
