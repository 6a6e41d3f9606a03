"""Reads the parts of one chunk by several threads: in which order, and what becomes of those that fail or
hang."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial

from services.kv_store.fetching.reading_threads import ReadingThreads
from shared.errors import CorruptData, DeadlineExceeded, NotFound, Unavailable

ReadPart = Callable[[int, Callable[[], None]], None]
"""Is given the number of a part, and blocks until its bytes are in the file. A second try goes on where the
first one failed. It says on the way that something arrived."""

RETRYABLE = (Unavailable, CorruptData, DeadlineExceeded, TimeoutError)
TRIES = 2


class PartReading:
    """Each part is read once, and once more if that fails. The first that fails for good ends the whole."""

    def __init__(self, threads: ReadingThreads, num_parts: int, read: ReadPart) -> None:
        self._threads, self._num_parts, self._read = threads, num_parts, read
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._lock = threading.Lock()
        self._taken: set[int] = set()
        self._num_arrived = 0
        self._moved_s = time.monotonic()  # when a part began, or something of one arrived last
        self._given_up = False

    def start(self, urgent: bool) -> None:
        """Again with ``urgent``: what has not begun goes before the parts of others."""
        for part in range(self._num_parts):
            if part not in self._taken:
                self._threads.submit((not urgent, part), partial(self._take, part))

    def give_up(self) -> None:
        """Gives up what has not begun."""
        self._given_up = True

    async def finished(self, patience_s: float) -> None:
        """Returns once all parts are there.

        Raises:
            KvquiltError: what was wrong with one of them. TimeoutError: parts are being read, and for
            ``patience_s`` nothing arrived. Waiting for a turn does not count.
        """
        wait_s = patience_s
        try:
            while not (await asyncio.wait([self._done], timeout=wait_s))[0]:
                wait_s = patience_s
                if len(self._taken) > self._num_arrived:
                    wait_s -= time.monotonic() - self._moved_s
                if wait_s <= 0:
                    raise TimeoutError("nothing arrives any more")
            self._done.result()
        finally:
            self.give_up()
            if not self._done.cancel():
                self._done.exception()  # whoever went away does not want to hear of it

    def _take(self, part: int) -> None:
        with self._lock:
            if part in self._taken:
                return
            self._taken.add(part)
            self._moved_s = time.monotonic()
        try:
            self._read_twice(part)
        except Exception as error:
            self.give_up()
            self._end(error)
            return
        with self._lock:
            self._num_arrived += 1
            complete = self._num_arrived == self._num_parts
        if complete:
            self._end(None)

    def _moved(self) -> None:
        self._moved_s = time.monotonic()

    def _read_twice(self, part: int) -> None:
        for tries_left in reversed(range(TRIES)):
            if self._given_up:
                raise NotFound("nobody waits for the chunk any more")
            try:
                self._read(part, self._moved)
                return
            except RETRYABLE:
                if not tries_left:
                    raise

    def _end(self, error: Exception | None) -> None:
        def end() -> None:
            if not self._done.done():
                self._done.set_result(None) if error is None else self._done.set_exception(error)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(end)
