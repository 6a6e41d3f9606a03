"""``services.kv_store.blobs.Blobs`` in a dict, with a clock of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from services.kv_store.blobs import WHOLE, BlobPage, BlobStat, ByteRange, From, Last, Span
from shared.errors import CorruptData, KvquiltError, NotFound


class MemoryBlobs:
    """``failure`` is raised by every method while it is set."""

    def __init__(self) -> None:
        self.blobs: dict[str, tuple[bytes, float, int]] = {}
        self.now_s = 1000.0
        self.failure: KvquiltError | None = None
        self._puts = 0

    def stat(self, name: str) -> BlobStat | None:
        self._check()
        if name not in self.blobs:
            return None
        data, modified_s, version = self.blobs[name]
        return BlobStat(name, len(data), modified_s, str(version))

    def read(self, name: str, byte_range: ByteRange = WHOLE) -> Iterator[bytes]:
        data = self._data(name)
        match byte_range:
            case Span(start, length):
                yield data[start : start + length]
            case From(start):
                yield data[start:]
            case Last(length):
                yield data[max(0, len(data) - length) :]

    def read_into(self, name: str, start: int, out: memoryview) -> None:
        part = self._data(name)[start : start + len(out)]
        if len(part) < len(out):
            raise CorruptData("shorter")
        out[:] = part

    def put(self, name: str, data: bytes) -> None:
        self._check()
        self._puts += 1
        self.blobs[name] = (data, self.now_s, self._puts)

    def put_file(self, name: str, path: Path) -> None:
        self.put(name, path.read_bytes())

    def delete(self, name: str) -> bool:
        self._check()
        return self.blobs.pop(name, None) is not None

    def list(self, prefix: str = "", start_after: str = "", limit: int = 1000) -> BlobPage:
        self._check()
        names = sorted(n for n in self.blobs if n.startswith(prefix) and n > start_after)
        stats = [s for n in names[:limit] if (s := self.stat(n))]
        return BlobPage(tuple(stats), len(names) > limit)

    def _data(self, name: str) -> bytes:
        self._check()
        if name not in self.blobs:
            raise NotFound("no such blob")
        return self.blobs[name][0]

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure
