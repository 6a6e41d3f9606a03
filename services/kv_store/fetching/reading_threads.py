"""Threads that take the most urgent work first, without a detour through the event loop between two pieces of
work.

Parts of chunks come faster than a busy event loop hands out the next ones: with one hop per part, half the
time went by waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

Order = tuple[int, ...]
ResultT = TypeVar("ResultT")


class ReadingThreads:
    """Thread-safe. All are started at once, for starting one takes long on a busy machine."""

    def __init__(self, num_threads: int, name: str) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[Order, int, Future[Any], Callable[[], Any]]] = []
        self._tickets = count()
        self._closed = False
        for i in range(num_threads):
            threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True).start()

    def submit(self, order: Order, call: Callable[[], ResultT]) -> Future[ResultT]:
        """Of what waits, the smallest ``order`` goes first. After ``close`` the future is cancelled."""
        future: Future[ResultT] = Future()
        with self._changed:
            if self._closed:
                future.cancel()
                return future
            heappush(self._waiting, (order, next(self._tickets), future, call))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Cancels what waits; does not wait for what runs."""
        with self._changed:
            self._closed = True
            for _, _, future, _ in self._waiting:
                future.cancel()
            self._waiting.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            future, call = taken
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            del future, call, taken  # what they hold must not live until the next work comes

    def _take(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            _, _, future, call = heappop(self._waiting)
            return future, call
