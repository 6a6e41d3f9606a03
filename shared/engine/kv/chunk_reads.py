"""Reads stored chunks into segments, by several threads, the first layer of all chunks first.

order of reading    chunk A   chunk B   chunk C
layer 0                1         2         3        the first pass can begin here
layer 1                4         5         6        … while these arrive
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from shared.engine.kv.copy_stream import CopyStream
from shared.engine.kv.segment import Segment
from shared.engine.kv.source import StoredSegment
from shared.errors import CorruptData, KvquiltError, NotFound

log = logging.getLogger(__name__)
_LOOK_UP_S = 0.1
"""How long a thread that waits does not notice that the engine is closing."""


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """The first layer of ``segment`` is there, the others follow."""

    key: str
    segment: Segment


@dataclass(frozen=True, slots=True)
class Loaded:
    """``segment`` is None when there is nothing usable; ``broken``: there is something, and it is not what
    was stored. Else it was read from ``tier``, between two instants of ``time.monotonic()``."""

    key: str
    segment: Segment | None
    broken: bool
    tier: str = ""
    began_s: float = 0.0
    ended_s: float = 0.0


def is_broken(key: str, error: Exception) -> bool:
    """Says in the log why a stored chunk could not be read. True: it is not what was stored."""
    if isinstance(error, CorruptData):
        log.warning("stored KV of chunk %s is corrupt (%s); it is computed and replaced", key, error.detail)
    elif isinstance(error, NotFound):
        log.info("KV of chunk %s is not stored; it is computed", key)
    elif isinstance(error, KvquiltError):
        log.warning("stored KV of chunk %s cannot be had (%s); it is computed", key, error.detail)
    else:
        log.error("stored KV of chunk %s cannot be read; it is computed", key, exc_info=error)
    return isinstance(error, CorruptData)


Tell = Callable[[FirstLayer | Loaded], None]


class ChunkRead:
    """One stored chunk on its way into ``segment``. ``tell`` hears of it on whichever thread notices:
    ``FirstLayer`` at most once, then ``Loaded`` exactly once, unless it is dropped."""

    def __init__(
        self,
        key: str,
        stored: StoredSegment,
        segment: Segment,
        tell: Tell,
        copies: CopyStream | None = None,
    ) -> None:
        """``copies``: what the device waits for, if it has to."""
        assert segment.arrival is not None
        self._copies = copies
        if copies is not None:
            for x_KTD in segment.allocations():
                copies.is_filled_there(x_KTD)
        self._began_s = time.monotonic()
        self._key = key
        self._stored = stored
        self._segment: Segment | None = segment
        self._tell = tell
        self._lock = threading.Lock()
        self._arrival = segment.arrival
        self._num_left = len(segment.k_LKTD)

    @property
    def in_order(self) -> bool:
        """See ``StoredSegment``."""
        return self._stored.in_order

    def when_begun(self, tell: Callable[[], None]) -> None:
        """See ``StoredSegment``."""
        self._stored.when_begun(tell)

    def read(self, layers: range) -> None:
        """Each layer once, in any order, on any thread."""
        try:
            segment = self._segment
            if segment is not None and not self._arrival.failed:
                segment.encoding = self._stored.encoding  # what is far says so once it has begun
                kv = (x[layers.start : layers.stop] for x in (segment.k_LKTD, segment.v_LKTD))
                self._stored.read_layers(layers, *kv)
                self._arrived(layers)
        except Exception as error:
            self._fail(is_broken(self._key, error))
        finally:
            self._passed(layers)

    def drop(self) -> None:
        """Nobody wants it any more: what is not read yet is not, and nothing is told from here on. Its memory
        returns once no thread reads into it. From any thread."""
        with self._lock:
            self._arrival.fail()
            self._segment = None

    def give_up(self, layers: range) -> None:
        """Instead of ``read``: the engine is closing."""
        self._fail(broken=False)
        self._passed(layers)

    def _arrived(self, layers: range) -> None:
        with self._lock:  # what is told first must arrive first
            if self._segment is None or self._arrival.failed:
                return
            self._arrival.layers_arrived(layers, self._copies.ordered() if self._copies else None)
            if self._arrival.whole:
                loaded = (self._stored.tier, self._began_s, time.monotonic())
                self._tell(Loaded(self._key, self._segment, False, *loaded))
            elif layers.start == 0:
                self._tell(FirstLayer(self._key, self._segment))

    def _fail(self, broken: bool) -> None:
        with self._lock:
            if not self._arrival.failed:
                self._arrival.fail()
                self._tell(Loaded(self._key, None, broken))

    def _passed(self, layers: range) -> None:
        """Whoever is last closes the file: another thread may be reading another layer of it."""
        with self._lock:
            self._num_left -= len(layers)
            if self._num_left:
                return
        try:
            self._stored.close()
        except Exception:
            log.exception("the stored KV of chunk %s cannot be closed", self._key)


class ReadList:
    """Layers of chunks in the order in which they are read; threads take from it until it is empty. Where a
    chunk's layers come in their order, one thread at a time has the chunk: of two that were on their way to
    it, the one with the later layer could be there first. Nobody waits for such a chunk to begin while there
    is another to read."""

    def __init__(self, readings: Sequence[ChunkRead], num_layers: int, at_once: int = 1) -> None:
        """``at_once``: layers of a chunk that are read together."""
        self._num_layers, self._at_once = num_layers, at_once
        self._turns: list[tuple[int, int, ChunkRead]] = []  # a heap
        self._not_begun = dict(enumerate(readings))
        self._changed = threading.Condition()
        for number, reading in enumerate(readings):
            if reading.in_order:
                reading.when_begun(partial(self._begin, number))
            else:
                self._begin(number)

    def work(self, closing: threading.Event) -> None:
        while (turn := self._next(closing)) is not None:
            layer, number, reading = turn
            layers = range(layer, min(layer + self._at_once, self._num_layers))
            if not reading.in_order:
                self._put(layers.stop, number, reading)
            if closing.is_set():
                reading.give_up(layers)
            else:
                reading.read(layers)
            if reading.in_order:
                self._put(layers.stop, number, reading)

    def _next(self, closing: threading.Event) -> tuple[int, int, ChunkRead] | None:
        """Waits only for chunks that have not begun. None: what is left is others' to read."""
        with self._changed:
            while not self._turns and self._not_begun:
                if closing.is_set():
                    for number in list(self._not_begun):
                        self._begin(number)
                else:
                    self._changed.wait(_LOOK_UP_S)
            return heapq.heappop(self._turns) if self._turns else None

    def _begin(self, number: int) -> None:
        with self._changed:
            if (reading := self._not_begun.pop(number, None)) is not None:
                self._put(0, number, reading)

    def _put(self, layer: int, number: int, reading: ChunkRead) -> None:
        with self._changed:
            if layer < self._num_layers:
                heapq.heappush(self._turns, (layer, number, reading))
            self._changed.notify()
