"""Who goes next, and what becomes of what waits at the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future

import pytest

from services.kv_store.fetching.reading_threads import ReadingThreads


@pytest.fixture
def one() -> Iterator[ReadingThreads]:
    threads = ReadingThreads(1, "test")
    yield threads
    threads.close()


def busy(threads: ReadingThreads) -> tuple[threading.Event, Future[bool]]:
    """Work that lasts until the event is set; it has begun."""
    begun, go = threading.Event(), threading.Event()
    future = threads.submit((0,), lambda: begun.set() or go.wait(10))
    assert begun.wait(10)
    return go, future


def test_the_most_urgent_goes_next_and_the_first_of_equals_first(one: ReadingThreads) -> None:
    go, _ = busy(one)
    done: list[str] = []
    orders = [(True, 5), (False, 7), (True, 0), (False, 7)]
    futures = [
        one.submit(order, lambda name=f"{order}{i}": done.append(name)) for i, order in enumerate(orders)
    ]
    go.set()
    for future in futures:
        future.result(10)
    assert done == ["(False, 7)1", "(False, 7)3", "(True, 0)2", "(True, 5)0"]


def test_a_failure_is_the_callers_and_the_thread_goes_on(one: ReadingThreads) -> None:
    with pytest.raises(ZeroDivisionError):
        one.submit((0,), lambda: 1 // 0).result(10)
    assert one.submit((0,), lambda: 7).result(10) == 7


def test_as_many_work_at_once_as_there_are_threads() -> None:
    threads, meeting = ReadingThreads(3, "test"), threading.Barrier(3)
    for future in [threads.submit((0,), lambda: meeting.wait(10)) for _ in range(3)]:
        future.result(10)
    threads.close()


def test_closing_cancels_what_waits_and_what_comes_later(one: ReadingThreads) -> None:
    go, running = busy(one)
    waiting = one.submit((0,), lambda: None)
    one.close()
    go.set()
    assert running.result(10)
    for future in (waiting, one.submit((0,), lambda: None)):
        with pytest.raises(CancelledError):
            future.result(10)
