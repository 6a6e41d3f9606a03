"""Keepers of blobs with trouble, by wrapping: latency, errors that go away, cut bodies, lies, being down,
dying."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from services.kv_store.blobs.protocol import (
    WHOLE,
    BlobPage,
    Blobs,
    BlobStat,
    ByteRange,
    Last,
    Link,
    Sink,
    Span,
)
from shared.errors import CorruptData, KvquiltError, Unavailable


class WrappedBlobs:
    """Does what ``inner`` does, after ``before`` was called with the method's name and the blob's (of a
    listing: its prefix)."""

    def __init__(self, inner: Blobs) -> None:
        self.inner = inner

    def before(self, method: str, name: str) -> None: ...

    def stat(self, name: str) -> BlobStat | None:
        self.before("stat", name)
        return self.inner.stat(name)

    def read(self, name: str, byte_range: ByteRange = WHOLE) -> Iterator[bytes]:
        self.before("read", name)
        yield from self.inner.read(name, byte_range)

    def read_to(self, name: str, byte_range: Span | Last, sink: Sink) -> int:
        self.before("read_to", name)
        return self.inner.read_to(name, byte_range, sink)

    def link(self, name: str) -> Link | None:
        return self.inner.link(name)

    def put(self, name: str, data: bytes) -> None:
        self.before("put", name)
        self.inner.put(name, data)

    def put_file(self, name: str, path: Path) -> None:
        self.before("put_file", name)
        self.inner.put_file(name, path)

    def delete(self, name: str) -> bool:
        self.before("delete", name)
        return self.inner.delete(name)

    def list(self, prefix: str = "", start_after: str = "", limit: int = 1000) -> BlobPage:
        self.before("list", prefix)
        return self.inner.list(prefix, start_after, limit)


class SlowBlobs(WrappedBlobs):
    """Every call waits ``latency_s``."""

    def __init__(self, inner: Blobs, latency_s: float) -> None:
        super().__init__(inner)
        self.latency_s = latency_s

    def before(self, method: str, name: str) -> None:
        time.sleep(self.latency_s)


class FailingBlobs(WrappedBlobs):
    """Every call raises ``failure`` while it is set: down, full, refusing."""

    def __init__(self, inner: Blobs, failure: KvquiltError | None = None) -> None:
        super().__init__(inner)
        self.failure = failure

    def before(self, method: str, name: str) -> None:
        if self.failure is not None:
            raise self.failure


class FlakyBlobs(WrappedBlobs):
    """A share ``rate`` of the calls fails, half of the failing ``put`` after they did what they should."""

    def __init__(self, inner: Blobs, rate: float, seed: int = 0) -> None:
        super().__init__(inner)
        self.num_failed = 0
        self._rate, self._random, self._lock = rate, random.Random(seed), threading.Lock()

    def before(self, method: str, name: str) -> None:
        if self._fails():
            raise Unavailable("flaky")

    def put(self, name: str, data: bytes) -> None:
        fails = self._fails()
        if not fails or self.num_failed % 2:
            self.inner.put(name, data)
        if fails:
            raise Unavailable("flaky")

    def _fails(self) -> bool:
        with self._lock:
            fails = self._random.random() < self._rate
            self.num_failed += fails
            return fails


class TruncatedBlobs(WrappedBlobs):
    """While ``keep_bytes`` is set, no read gives more than that: a stream ends without a word, ``read_to``
    notices."""

    def __init__(self, inner: Blobs, keep_bytes: int | None = None) -> None:
        super().__init__(inner)
        self.keep_bytes = keep_bytes

    def read(self, name: str, byte_range: ByteRange = WHOLE) -> Iterator[bytes]:
        left = self.keep_bytes
        for piece in self.inner.read(name, byte_range):
            yield piece if left is None else piece[:left]
            if left is not None and (left := left - len(piece)) <= 0:
                return

    def read_to(self, name: str, byte_range: Span | Last, sink: Sink) -> int:
        if isinstance(byte_range, Last) or self.keep_bytes is None or byte_range.length <= self.keep_bytes:
            return self.inner.read_to(name, byte_range, sink)
        self.inner.read_to(name, Span(byte_range.start, self.keep_bytes), sink)
        raise CorruptData(f"{name} ends early")


class LyingBlobs(WrappedBlobs):
    """What is read whole, ``lie`` alters: it is given the blob's name and its bytes."""

    def __init__(self, inner: Blobs, lie: Callable[[str, bytes], bytes]) -> None:
        super().__init__(inner)
        self.lie = lie

    def read(self, name: str, byte_range: ByteRange = WHOLE) -> Iterator[bytes]:
        yield self.lie(name, b"".join(self.inner.read(name, byte_range)))


class HookedBlobs(WrappedBlobs):
    """``hook`` is called before every method with its name and the blob's: it may raise, wait, count or
    change the world."""

    def __init__(self, inner: Blobs, hook: Callable[[str, str], None]) -> None:
        super().__init__(inner)
        self.hook = hook

    def before(self, method: str, name: str) -> None:
        self.hook(method, name)


class HangingBlobs(WrappedBlobs):
    """Answers two ranged reads; those after them wait for ``may_answer``."""

    def __init__(self, inner: Blobs) -> None:
        super().__init__(inner)
        self.may_answer = threading.Event()
        self._lock = threading.Lock()
        self._num_reads = 0

    def before(self, method: str, name: str) -> None:
        if method != "read_to":
            return
        with self._lock:
            self._num_reads += 1
            waits = self._num_reads > 2
        if waits:
            self.may_answer.wait(30)


class DyingBlobs(WrappedBlobs):
    """The process dies at change ``dies_at`` (counted from 0), ``after`` or before it was made; later ones
    are not made either."""

    def __init__(
        self, inner: Blobs, dies_at: int, death: Callable[[], BaseException], after: bool = False
    ) -> None:
        super().__init__(inner)
        self.num_changes = 0
        self._dies_at, self._death, self._after = dies_at, death, after
        self._lock = threading.Lock()

    def put(self, name: str, data: bytes) -> None:
        self._change(lambda: self.inner.put(name, data))

    def put_file(self, name: str, path: Path) -> None:
        self._change(lambda: self.inner.put_file(name, path))

    def delete(self, name: str) -> bool:
        there = self.inner.stat(name) is not None
        self._change(lambda: self.inner.delete(name))
        return there

    def _change(self, make: Callable[[], object]) -> None:
        with self._lock:
            number, self.num_changes = self.num_changes, self.num_changes + 1
        if number < self._dies_at or (number == self._dies_at and self._after):
            make()
        if number >= self._dies_at:
            raise self._death()
