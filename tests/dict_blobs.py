"""The plain dict that every keeper of blobs is held against, and a stand-in for them where tests need none in
particular."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from hashlib import md5
from pathlib import Path

from services.kv_store.blobs.disk import storing
from services.kv_store.blobs.protocol import (
    WHOLE,
    BlobPage,
    Blobs,
    BlobStat,
    ByteRange,
    From,
    Last,
    Link,
    Sink,
    Span,
    check_whole,
)
from shared.errors import NotFound


def slice_of(data: bytes, byte_range: ByteRange) -> bytes:
    match byte_range:
        case Span(start, length):
            return data[start : start + length]
        case From(start):
            return data[start:]
        case Last(length):
            return data[max(0, len(data) - length) :]


class DictBlobs:
    """Its clock goes on by a second with every ``put``."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self._put_s: dict[str, float] = {}
        self._now_s = 0.0
        self._lock = threading.Lock()

    def stat(self, name: str) -> BlobStat | None:
        data = self.data.get(name)
        return (
            None
            if data is None
            else BlobStat(name, len(data), self._put_s.get(name, 0.0), md5(data).hexdigest())
        )

    def read(self, name: str, byte_range: ByteRange = WHOLE) -> Iterator[bytes]:
        if piece := slice_of(self._get(name), byte_range):
            yield piece

    def read_to(self, name: str, byte_range: Span | Last, sink: Sink) -> int:
        data = self._get(name)
        if found := slice_of(data, byte_range):
            sink(
                byte_range.start if isinstance(byte_range, Span) else len(data) - len(found),
                memoryview(found),
            )
        check_whole(name, byte_range, len(found))
        return len(data)

    def link(self, name: str) -> Link | None:
        return None

    def put(self, name: str, data: bytes) -> None:
        with self._lock:
            self.data[name] = bytes(data)
            self._now_s += 1
            self._put_s[name] = self._now_s

    def put_file(self, name: str, path: Path) -> None:
        with storing():
            self.put(name, path.read_bytes())

    def delete(self, name: str) -> bool:
        with self._lock:
            return self.data.pop(name, None) is not None

    def list(self, prefix: str = "", start_after: str = "", limit: int = 1000) -> BlobPage:
        with self._lock:
            names = sorted(n for n in self.data if n.startswith(prefix) and n > start_after)
        stats = [s for n in names[:limit] if (s := self.stat(n))]
        return BlobPage(tuple(stats), truncated=len(names) > limit)

    def _get(self, name: str) -> bytes:
        if name not in self.data:
            raise NotFound(f"{name}: not stored")
        return self.data[name]


def fill_by_sink(blobs: Blobs, name: str, start: int, out: memoryview) -> None:
    """Fills ``out``. Raises like ``Blobs.read_to``."""

    def fill(offset: int, piece: memoryview) -> None:
        out[offset - start : offset - start + len(piece)] = piece

    blobs.read_to(name, Span(start, len(out)), fill)
