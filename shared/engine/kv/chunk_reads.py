"""Reads stored chunks into segments, by several threads, the first layer of all chunks first.

order of reading    chunk A   chunk B   chunk C
layer 0                1         2         3        the first pass can begin here
layer 1                4         5         6        … while these arrive
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared.engine.kv.segment import Segment
from shared.engine.kv.source import StoredSegment
from shared.errors import CorruptData, KvquiltError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Arriving:
    """The first layer of ``segment`` is there, the others follow."""

    key: str
    segment: Segment


@dataclass(frozen=True, slots=True)
class Loaded:
    """``segment`` is None when there is nothing usable; ``broken``: there is something, and it is not what
    was stored."""

    key: str
    segment: Segment | None
    broken: bool


class ChunkReading:
    """One stored chunk on its way into ``segment``. ``tell`` hears of it on whichever thread notices:
    ``Arriving`` at most once, then ``Loaded`` exactly once."""

    def __init__(
        self, key: str, stored: StoredSegment, segment: Segment, tell: Callable[[Arriving | Loaded], None]
    ) -> None:
        assert segment.arrival is not None
        self._key = key
        self._stored = stored
        self._segment = segment
        self._tell = tell
        self._lock = threading.Lock()
        self._arrival = segment.arrival
        self._num_left = len(segment.k_LKTD)

    def read(self, layer: int) -> None:
        """Each layer once, in any order, on any thread."""
        try:
            if not self._arrival.failed:
                self._stored.read_layer(layer, self._segment.k_LKTD[layer], self._segment.v_LKTD[layer])
                self._arrived(layer)
        except CorruptData as error:
            log.warning(
                "stored KV of chunk %s is corrupt (%s); it is recomputed and replaced",
                self._key,
                error.detail,
            )
            self._fail(broken=True)
        except KvquiltError as error:
            log.warning("stored KV of chunk %s cannot be had (%s); it is recomputed", self._key, error.detail)
            self._fail(broken=False)
        except Exception:
            log.exception("stored KV of chunk %s cannot be read; it is recomputed", self._key)
            self._fail(broken=False)
        finally:
            self._passed()

    def give_up(self) -> None:
        """Instead of ``read``: the engine is closing."""
        self._fail(broken=False)
        self._passed()

    def _arrived(self, layer: int) -> None:
        with self._lock:  # what is told first must arrive first
            if self._arrival.failed:
                return
            self._arrival.layer_arrived(layer)
            if self._arrival.whole:
                self._tell(Loaded(self._key, self._segment, broken=False))
            elif layer == 0:
                self._tell(Arriving(self._key, self._segment))

    def _fail(self, broken: bool) -> None:
        with self._lock:
            if not self._arrival.failed:
                self._arrival.fail()
                self._tell(Loaded(self._key, None, broken))

    def _passed(self) -> None:
        """Whoever is last closes the file: another thread may be reading another layer of it."""
        with self._lock:
            self._num_left -= 1
            if self._num_left:
                return
        try:
            self._stored.close()
        except Exception:
            log.exception("the stored KV of chunk %s cannot be closed", self._key)


class ReadingList:
    """Layers of chunks in the order in which they are read; threads take from it until it is empty."""

    def __init__(self, readings: Sequence[ChunkReading], num_layers: int) -> None:
        self._turns: queue.SimpleQueue[tuple[int, ChunkReading]] = queue.SimpleQueue()
        for layer in range(num_layers):
            for reading in readings:
                self._turns.put((layer, reading))

    def work(self, closing: threading.Event) -> None:
        while True:
            try:
                layer, reading = self._turns.get_nowait()
            except queue.Empty:
                return
            if closing.is_set():
                reading.give_up()
            else:
                reading.read(layer)
