"""Who goes next, and what becomes of what waits at the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from services.kv_store.fetching.reading_threads import ReadingThreads


@pytest.fixture
def one() -> Iterator[ReadingThreads]:
    threads = ReadingThreads(1, "test")
    yield threads
    threads.close()


def busy(threads: ReadingThreads) -> threading.Event:
    """Work that lasts until the event is set; it has begun."""
    begun, go = threading.Event(), threading.Event()
    threads.submit((0,), lambda: begun.set() or go.wait(10))
    assert begun.wait(10)
    return go


def test_the_most_urgent_goes_next_and_the_first_of_equals_first(one: ReadingThreads) -> None:
    go = busy(one)
    done: SimpleQueue[str] = SimpleQueue()
    for i, order in enumerate([(True, 5), (False, 7), (True, 0), (False, 7)]):
        one.submit(order, lambda name=f"{order}{i}": done.put(name))
    go.set()
    assert [done.get(timeout=10) for _ in range(4)] == [
        "(False, 7)1",
        "(False, 7)3",
        "(True, 0)2",
        "(True, 5)0",
    ]


def test_after_a_failure_the_thread_goes_on(one: ReadingThreads, caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()
    one.submit((0,), lambda: 1 // 0)
    one.submit((0,), done.set)
    assert done.wait(10)
    assert "ZeroDivisionError" in caplog.text


def test_as_many_work_at_once_as_there_are_threads() -> None:
    threads, meeting = ReadingThreads(3, "test"), threading.Barrier(4)
    for _ in range(3):
        threads.submit((0,), lambda: meeting.wait(10))
    meeting.wait(10)
    threads.close()


def test_what_waits_when_it_is_closed_and_what_comes_later_is_never_run() -> None:
    threads = ReadingThreads(1, "closing")
    go, ran = busy(threads), threading.Event()
    (thread,) = (t for t in threading.enumerate() if t.name == "closing-0")
    threads.submit((False, 0), ran.set)
    threads.close()
    threads.submit((False, 0), ran.set)
    go.set()
    thread.join(10)
    assert not thread.is_alive()
    assert not ran.is_set()
