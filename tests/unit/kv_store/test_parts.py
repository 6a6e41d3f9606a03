"""Parts of a chunk on their way: in which order, and what becomes of those that fail or hang."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from services.kv_store.fetching.parts import PartReading, ReadPart
from services.kv_store.fetching.reading_threads import ReadingThreads
from shared.errors import CorruptData, NotFound, StorageFull, Unavailable

NUM_PARTS = 10
SOON_S, LATE_S = 0.05, 20.0


@pytest.fixture
def threads() -> Iterator[ReadingThreads]:
    threads = ReadingThreads(2, "test")
    yield threads
    threads.close()


def reading(threads: ReadingThreads, read: ReadPart) -> PartReading:
    return PartReading(threads, NUM_PARTS, read)


async def test_every_part_is_read_once(threads: ReadingThreads) -> None:
    read: Counter[int] = Counter()
    it = reading(threads, lambda part, _: read.update([part]))
    it.start(urgent=False)
    it.start(urgent=True)  # somebody came who waits for it
    await it.finished(LATE_S)
    assert read == Counter(range(NUM_PARTS))


async def test_a_part_of_which_something_arrives_now_and_then_does_not_hang(threads: ReadingThreads) -> None:
    def read(part: int, moved: Callable[[], None]) -> None:
        for _ in range(8 if part == 0 else 0):
            threading.Event().wait(SOON_S)
            moved()

    it = reading(threads, read)
    it.start(urgent=True)
    await it.finished(3 * SOON_S)


@pytest.mark.parametrize("error", [Unavailable("busy"), CorruptData("cut off"), TimeoutError()])
async def test_a_part_that_fails_is_read_once_more(threads: ReadingThreads, error: Exception) -> None:
    tries: Counter[int] = Counter()

    def read(part: int, _: Callable[[], None]) -> None:
        tries[part] += 1
        if part == 3 and tries[part] == 1:
            raise error

    it = reading(threads, read)
    it.start(urgent=True)
    await it.finished(LATE_S)
    assert tries[3] == 2
    assert sum(tries.values()) == NUM_PARTS + 1


@pytest.mark.parametrize("error", [Unavailable("down"), StorageFull("full"), NotFound("gone")])
async def test_the_first_part_that_fails_for_good_ends_all(threads: ReadingThreads, error: Exception) -> None:
    def read(part: int, _: Callable[[], None]) -> None:
        if part == 2:
            raise error

    it = reading(threads, read)
    it.start(urgent=True)
    with pytest.raises(type(error)):
        await it.finished(LATE_S)


async def test_a_part_that_hangs_is_not_waited_for(threads: ReadingThreads) -> None:
    forever = threading.Event()
    it = reading(threads, lambda part, _: None if part else forever.wait(LATE_S) and None)
    it.start(urgent=True)
    with pytest.raises(TimeoutError):
        await it.finished(SOON_S)
    forever.set()


async def test_waiting_for_a_turn_is_no_stall(threads: ReadingThreads) -> None:
    go = threading.Event()
    for _ in range(2):
        threads.submit((0,), lambda: go.wait(LATE_S))
    it = reading(threads, lambda part, _: None)
    it.start(urgent=False)
    threading.Timer(4 * SOON_S, go.set).start()
    await it.finished(SOON_S)


async def test_what_has_not_begun_when_it_is_given_up_never_does(threads: ReadingThreads) -> None:
    go, read = threading.Event(), Counter[int]()
    for _ in range(2):
        threads.submit((0,), lambda: go.wait(LATE_S))
    it = reading(threads, lambda part, _: read.update([part]))
    it.start(urgent=False)
    it.give_up()
    go.set()
    with pytest.raises(NotFound):
        await it.finished(LATE_S)
    assert not read
