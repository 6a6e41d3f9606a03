"""Threads that take the most urgent work first, without a detour through the event loop between two pieces of
work.

Parts of chunks come faster than a busy event loop hands out the next ones: with one hop per part, half the
time went by waiting.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import count
from queue import PriorityQueue

log = logging.getLogger(__name__)
Order = tuple[int, ...]


class ReadingThreads:
    """Thread-safe. All are started at once, for starting one takes long on a busy machine."""

    def __init__(self, num_threads: int, name: str) -> None:
        self._num_threads = num_threads
        self._waiting: PriorityQueue[tuple[Order, int, Callable[[], object] | None]] = PriorityQueue()
        self._tickets = count()
        for i in range(num_threads):
            threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True).start()

    def submit(self, order: Order, call: Callable[[], object] | None) -> None:
        """Of what waits, the smallest ``order`` goes first. None ends the thread that takes it."""
        self._waiting.put((order, next(self._tickets), call))

    def close(self) -> None:
        """Drops what waits and what comes later; does not wait for what runs."""
        for _ in range(self._num_threads):
            self.submit((), None)

    def _work(self) -> None:
        while (call := self._waiting.get()[-1]) is not None:
            try:
                call()
            except Exception:
                log.exception("unexpected error in a reading thread")
            del call  # what it holds must not live until the next work comes
