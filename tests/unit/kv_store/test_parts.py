"""Parts of a chunk on their way: in which order, and what becomes of those that fail or hang."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from services.kv_store.fetching.parts import Arrivals, PartReading, ReadPart, parts_of
from services.kv_store.fetching.reading_threads import ReadingThreads
from shared.errors import CorruptData, NotFound, StorageFull, Unavailable

PARTS = parts_of(95, 10)
LAYERS = [(0, 25), (25, 30), (55, 45)]
SOON_S, LATE_S = 0.05, 20.0


@pytest.fixture
def threads() -> Iterator[ReadingThreads]:
    threads = ReadingThreads(2, "test")
    yield threads
    threads.close()


def reading(threads: ReadingThreads, read: ReadPart, marked: list[int] | None = None) -> PartReading:
    mark = (lambda layer: None) if marked is None else marked.append
    return PartReading(threads, PARTS, read, Arrivals(PARTS, LAYERS, mark))


def test_parts_cover_all_bytes_once() -> None:
    assert [start for start, _ in PARTS] == list(range(0, 95, 10))
    assert sum(length for _, length in PARTS) == 95
    assert parts_of(0, 10) == []


async def test_every_part_is_read_once_and_every_layer_marked_when_it_is_whole(
    threads: ReadingThreads,
) -> None:
    read: Counter[tuple[int, int]] = Counter()
    marked: list[int] = []
    it = reading(threads, lambda start, length, _: read.update([(start, length)]), marked)
    it.start(urgent=False)
    it.start(urgent=True)  # somebody came who waits for it
    await it.finished(LATE_S)
    assert read == Counter(PARTS)
    assert sorted(marked) == [0, 1, 2]


async def test_a_layer_is_there_with_its_last_byte_and_not_before(threads: ReadingThreads) -> None:
    marked: list[int] = []
    seen: list[list[int]] = []
    parts, layers = parts_of(100, 50), [(5, 20), (25, 40), (65, 30)]

    def read(start: int, length: int, arrived: Callable[[int], None]) -> None:
        for end in (start + 24, start + 25, start + 25, start + 10, start + 45):  # as when it is read again
            arrived(end)
            seen.append(list(marked))

    one = ReadingThreads(1, "test")
    it = PartReading(one, parts, read, Arrivals(parts, layers, marked.append))
    it.start(urgent=True)
    await it.finished(LATE_S)
    one.close()
    assert seen == [[], [0], [0], [0], [0], *[[0, 1]] * 4, [0, 1, 2]]


@pytest.mark.parametrize("error", [Unavailable("busy"), CorruptData("cut off"), TimeoutError()])
async def test_a_part_that_fails_is_read_once_more(threads: ReadingThreads, error: Exception) -> None:
    tries: Counter[int] = Counter()

    def read(start: int, length: int, _: Callable[[int], None]) -> None:
        tries[start] += 1
        if start == 30 and tries[start] == 1:
            raise error

    it = reading(threads, read)
    it.start(urgent=True)
    await it.finished(LATE_S)
    assert tries[30] == 2
    assert sum(tries.values()) == len(PARTS) + 1


@pytest.mark.parametrize("error", [Unavailable("down"), StorageFull("full"), NotFound("gone")])
async def test_the_first_part_that_fails_for_good_ends_all(threads: ReadingThreads, error: Exception) -> None:
    def read(start: int, length: int, _: Callable[[int], None]) -> None:
        if start == 20:
            raise error

    marked: list[int] = []
    it = reading(threads, read, marked)
    it.start(urgent=True)
    with pytest.raises(type(error)):
        await it.finished(LATE_S)
    assert 0 not in marked  # the part is of that layer


async def test_a_part_that_hangs_is_not_waited_for(threads: ReadingThreads) -> None:
    forever = threading.Event()
    it = reading(threads, lambda start, length, _: None if start else forever.wait(LATE_S) and None)
    it.start(urgent=True)
    with pytest.raises(TimeoutError):
        await it.finished(SOON_S)
    forever.set()


async def test_waiting_for_a_turn_is_no_stall(threads: ReadingThreads) -> None:
    go = threading.Event()
    others = [threads.submit((0,), lambda: go.wait(LATE_S)) for _ in range(2)]
    it = reading(threads, lambda start, length, _: None)
    it.start(urgent=False)
    threading.Timer(4 * SOON_S, go.set).start()
    await it.finished(SOON_S)
    assert all(other.result(LATE_S) for other in others)


async def test_what_has_not_begun_when_it_is_given_up_never_does(threads: ReadingThreads) -> None:
    go, read = threading.Event(), Counter[int]()
    others = [threads.submit((0,), lambda: go.wait(LATE_S)) for _ in range(2)]
    it = reading(threads, lambda start, length, _: read.update([start]))
    it.start(urgent=False)
    it.give_up()
    go.set()
    with pytest.raises(NotFound):
        await it.finished(LATE_S)
    assert not read
    assert all(other.result(LATE_S) for other in others)
