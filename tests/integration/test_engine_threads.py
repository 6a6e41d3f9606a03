"""A call's units are shared among threads (``threads.c``): each is done once, before the call returns."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.backends.native import library

pytestmark = pytest.mark.skipif(library() is None, reason="no kernels were compiled")
WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int)
ENDED_S = 10.0

Turn = tuple[int, int, int]


def share(
    num_threads: int, num_units: int, at_once: int, during: Callable[[int], object] = lambda thread: None
) -> list[Turn]:
    """Its turns: first unit, end of units, number of the thread. ``during``: each of them."""
    turns: list[Turn] = []

    def work(_context: object, first: int, end: int, thread: int) -> None:
        during(thread)
        turns.append((first, end, thread))

    run = library().kvquilt_share  # type: ignore[union-attr]
    run.restype, run.argtypes = None, (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, WORK, ctypes.c_void_p)
    run(num_threads, num_units, at_once, WORK(work), None)
    return turns


def units_of(turns: list[Turn]) -> list[int]:
    return sorted(unit for first, end, _ in turns for unit in range(first, end))


@settings(deadline=None, derandomize=True)
@given(num_threads=st.integers(1, 5), num_units=st.integers(0, 300), at_once=st.integers(1, 40))
def test_each_unit_is_done_once(num_threads: int, num_units: int, at_once: int) -> None:
    turns = share(num_threads, num_units, at_once)
    assert units_of(turns) == list(range(num_units))
    assert all(0 <= thread < num_threads for *_, thread in turns)


def test_no_two_threads_have_a_number_at_the_same_time() -> None:
    busy: set[int] = set()

    def during(thread: int) -> None:
        assert thread not in busy
        busy.add(thread)
        time.sleep(0.001)  # lets others run
        busy.remove(thread)

    turns = share(4, 100, 1, during)
    assert {thread for *_, thread in turns} == set(range(4))


def test_a_call_waits_for_the_turn_that_another_thread_began() -> None:
    """Much longer than it spins: it sleeps then, and is woken."""
    both_began = threading.Barrier(2, timeout=ENDED_S)

    def during(thread: int) -> None:
        both_began.wait()
        time.sleep(0.3 if thread else 0)

    assert units_of(share(2, 2, 1, during)) == [0, 1]


def test_helpers_that_fell_asleep_come_to_the_next_call() -> None:
    both_began = threading.Barrier(2, timeout=ENDED_S)
    for _ in range(3):
        assert units_of(share(2, 2, 1, lambda _: both_began.wait())) == [0, 1]
        time.sleep(0.05)


def test_callers_do_not_meet() -> None:
    """Each thread that calls has helpers of its own."""
    with ThreadPoolExecutor(4) as callers:
        for _ in range(20):
            calls = [callers.submit(share, 3, num_units, 2) for num_units in (10, 20, 30, 40)]
            assert [units_of(call.result()) for call in calls] == [list(range(n)) for n in (10, 20, 30, 40)]


def test_helpers_end_with_the_thread_that_called() -> None:
    all_began = threading.Barrier(4, timeout=ENDED_S)

    def call() -> set[str]:
        share(4, 4, 1, lambda _: all_began.wait())
        return helpers()

    before = helpers()
    with ThreadPoolExecutor(1) as caller:
        own = caller.submit(call).result() - before
    assert len(own) == 3
    until = time.monotonic() + ENDED_S
    while own & helpers() and time.monotonic() < until:
        time.sleep(0.01)
    assert not own & helpers()


def helpers() -> set[str]:
    """Ids of the threads of this process that help."""
    found = set()
    for thread in Path(f"/proc/{os.getpid()}/task").iterdir():
        with suppress(FileNotFoundError):  # it ended meanwhile
            if (thread / "comm").read_text().strip() == "kvquilt-kernels":
                found.add(thread.name)
    return found


def test_another_number_of_threads_needs_no_new_caller() -> None:
    for count in (2, 5, 1, 3, 5):
        together = threading.Barrier(count, timeout=ENDED_S)
        turns = share(count, count, 1, lambda _, together=together: together.wait())
        assert {thread for *_, thread in turns} == (set(range(count)) if count > 1 else {0})


def test_a_child_process_has_helpers_of_its_own() -> None:
    """A fork takes along the memory of its parent's, not them."""
    share(3, 100, 1)
    forked = multiprocessing.get_context("fork")
    receive, send = forked.Pipe(duplex=False)
    child = forked.Process(target=lambda: send.send(units_of(share(3, 100, 1))))
    child.start()
    assert receive.poll(ENDED_S), "the child came to an end"
    assert receive.recv() == list(range(100))
    child.join(ENDED_S)
    assert child.exitcode == 0
