"""An object store in a dict, with trouble on demand."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from services.kv_store.blobs import WHOLE, BlobPage, BlobStat, ByteRange, From, Last, Span
from shared.errors import CorruptData, NotFound
from shared.kv_types import PIECE_BYTES


class DictBlobs:
    """``services.kv_store.blobs.Blobs``. ``before`` is called with the method's name and the blob's, before anything else: it may
    wait or raise. ``change`` may change the bytes that a reader gets. ``calls`` counts."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.calls: Counter[str] = Counter()
        self.before: Callable[[str, str], None] = lambda method, name: None
        self.change: Callable[[str, bytes], bytes] = lambda name, data: data
        self._lock = threading.Lock()
        self._versions: Counter[str] = Counter()

    def stat(self, name: str) -> BlobStat | None:
        self._called("stat", name)
        data = self.data.get(name)
        return None if data is None else BlobStat(name, len(data), 0.0, str(self._versions[name]))

    def read(self, name: str, byte_range: ByteRange = WHOLE) -> Iterator[bytes]:
        self._called("read", name)
        data = self._get(name)
        match byte_range:
            case Span(start, length):
                data = data[start : start + length]
            case From(start):
                data = data[start:]
            case Last(length):
                data = data[max(len(data) - length, 0) :]
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]

    def read_into(self, name: str, start: int, out: memoryview) -> None:
        self._called("read_into", name)
        data = self._get(name)[start : start + len(out)]
        if len(data) < len(out):
            raise CorruptData("it ends before")
        out[:] = data

    def put(self, name: str, data: bytes) -> None:
        self._called("put", name)
        with self._lock:
            self.data[name] = data
            self._versions[name] += 1

    def put_file(self, name: str, path: Path) -> None:
        self._called("put_file", name)
        data = path.read_bytes()
        with self._lock:
            self.data[name] = data
            self._versions[name] += 1

    def delete(self, name: str) -> bool:
        self._called("delete", name)
        with self._lock:
            return self.data.pop(name, None) is not None

    def list(self, prefix: str = "", start_after: str = "", limit: int = 1000) -> BlobPage:
        self._called("list", prefix)
        with self._lock:
            names = sorted(n for n in self.data if n.startswith(prefix) and n > start_after)
            blobs = tuple(BlobStat(n, len(self.data[n]), 0.0, str(self._versions[n])) for n in names[:limit])
        return BlobPage(blobs, truncated=len(names) > limit)

    def _get(self, name: str) -> bytes:
        if name not in self.data:
            raise NotFound("no such blob")
        return self.change(name, self.data[name])

    def _called(self, method: str, name: str) -> None:
        with self._lock:
            self.calls[method] += 1
        self.before(method, name)
