"""Hands calls of other threads to the engine's thread, in the order in which they came."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable


class Inbox:
    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._news = threading.Event()

    def __len__(self) -> int:
        return self._calls.qsize()

    @property
    def has_news(self) -> bool:
        """Something happened since the last ``drain`` that a pass should not let wait while it waits."""
        return self._news.is_set()

    def post(self, call: Callable[[], None], news: bool = True) -> None:
        self._calls.put(call)
        if news:
            self._news.set()

    def drain(self) -> None:
        self._news.clear()
        while True:
            try:
                self._calls.get_nowait()()
            except queue.Empty:
                return

    def wait(self, timeout_s: float | None) -> None:
        """Until one call was made, or the time is over."""
        with contextlib.suppress(queue.Empty):
            self._calls.get(timeout=timeout_s)()
