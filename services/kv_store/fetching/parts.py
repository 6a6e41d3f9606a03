"""The parts of one chunk on their way into its staged file, read by several threads, and what is whole
when."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from services.kv_store.fetching.reading_threads import ReadingThreads
from shared.errors import CorruptData, DeadlineExceeded, NotFound, Unavailable

Part = tuple[int, int]
"""Offset and length."""

ReadPart = Callable[[int, int, Callable[[int], None]], None]
"""Is given offset and length, and blocks until those bytes are in the file. It may say on the way up to where
they are."""

RETRYABLE = (Unavailable, CorruptData, DeadlineExceeded, TimeoutError)
TRIES = 2


class Arrivals:
    """Which layers are whole when which bytes of which parts are there."""

    def __init__(self, parts: Sequence[Part], layers: Sequence[Part], mark: Callable[[int], None]) -> None:
        """Layers that no part touches are there already."""
        self._mark = mark
        self._layers = layers
        self._arrived_to = [start for start, _ in parts]
        self._layers_of = [[i for i, layer in enumerate(layers) if _overlap(part, layer)] for part in parts]
        self._num_missing: Counter[int] = Counter()  # bytes of each layer
        for part, touched in zip(parts, self._layers_of, strict=True):
            for layer in touched:
                self._num_missing[layer] += _overlap(part, layers[layer])
        for layer in range(len(layers)):
            if not self._num_missing[layer]:
                mark(layer)

    def arrived(self, part: int, end: int) -> None:
        """All of the part that lies before ``end``. What is read again has arrived already."""
        start = self._arrived_to[part]
        if end <= start:
            return
        self._arrived_to[part] = end
        for layer in self._layers_of[part]:
            if count := _overlap((start, end - start), self._layers[layer]):
                self._num_missing[layer] -= count
                if not self._num_missing[layer]:
                    self._mark(layer)


class PartReading:
    """Each part is read once, and once more if that fails. The first that fails for good ends the whole."""

    def __init__(
        self, threads: ReadingThreads, parts: Sequence[Part], read: ReadPart, arrivals: Arrivals
    ) -> None:
        self._threads, self._parts, self._read, self._arrivals = threads, parts, read, arrivals
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._lock = threading.Lock()
        self._taken: set[int] = set()
        self._num_arrived = 0
        self._moved_s = time.monotonic()  # when a part began, or something of one arrived last
        self._given_up = False

    def start(self, urgent: bool) -> None:
        """Again with ``urgent``: what has not begun goes before the parts of others."""
        for i, (start, _) in enumerate(self._parts):
            if i not in self._taken:
                self._threads.submit((not urgent, start), partial(self._take, i))

    def give_up(self) -> None:
        """What has not begun never will."""
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
            complete = self._num_arrived == len(self._parts)
        if complete:
            self._end(None)

    def _arrived(self, part: int, end: int) -> None:
        with self._lock:
            self._arrivals.arrived(part, end)
            self._moved_s = time.monotonic()

    def _read_twice(self, part: int) -> None:
        start, length = self._parts[part]
        for tries_left in reversed(range(TRIES)):
            if self._given_up:
                raise NotFound("nobody waits for the chunk any more")
            try:
                self._read(start, length, partial(self._arrived, part))
                self._arrived(part, start + length)
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


def parts_of(length: int, part_bytes: int) -> list[Part]:
    return [(start, min(part_bytes, length - start)) for start in range(0, length, part_bytes)]


def _overlap(a: Part, b: Part) -> int:
    """Bytes that both have."""
    return max(0, min(a[0] + a[1], b[0] + b[1]) - max(a[0], b[0]))
