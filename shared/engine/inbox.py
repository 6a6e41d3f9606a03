"""Hands calls of other threads to the engine's thread, in the order in which they came."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable


class Inbox:
    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._quiet: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._news = threading.Event()

    def __len__(self) -> int:
        return self._calls.qsize() + self._quiet.qsize()

    @property
    def has_news(self) -> bool:
        """Something happened since the last ``drain`` that a pass should not let wait while it waits."""
        return self._news.is_set()

    def post(self, call: Callable[[], None], news: bool = True) -> None:
        self._calls.put(call)
        if news:
            self._news.set()

    def post_quietly(self, call: Callable[[], None]) -> None:
        """Wakes nobody: it is made when something else happens, before that."""
        self._quiet.put(call)

    def drain(self) -> None:
        self._news.clear()
        for calls in (self._quiet, self._calls):
            with contextlib.suppress(queue.Empty):
                while True:
                    calls.get_nowait()()

    def wait(self, timeout_s: float | None) -> None:
        """Until one call was made, or the time is over."""
        with contextlib.suppress(queue.Empty):
            self._calls.get(timeout=timeout_s)()
