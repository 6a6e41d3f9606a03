"""Blobs as the files of a directory: on a disk, or in shared memory, where nothing needs to be made
durable."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from io import BufferedReader
from itertools import islice
from pathlib import Path

from services.kv_store.blobs.disk import Disk, storing
from services.kv_store.blobs.protocol import (
    WHOLE,
    BlobPage,
    BlobStat,
    ByteRange,
    From,
    Last,
    Sink,
    Span,
    check_whole,
    piece_buffer,
)
from services.kv_store.blobs.staging import Staging
from shared.errors import InvalidRequest, NotFound
from shared.kv_types import PIECE_BYTES

_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_NAME = re.compile(rf"{_PART}(/{_PART})*")


class DirectoryBlobs:
    """``services.kv_store.blobs.protocol.Blobs`` below ``root``. ``staging`` must be on the same file system,
    and not below ``root`` unless no listing comes there. Not ``durable``: what is put may be gone after a
    power failure, but is never torn."""

    def __init__(self, root: Path, staging: Staging, disk: Disk | None = None, durable: bool = True) -> None:
        self._root, self._staging, self._disk, self._durable = root, staging, disk or Disk(), durable
        with storing():
            self._disk.make_dir(root)

    def path_of(self, name: str) -> Path:
        """Names the file of a blob, whether it is there or not."""
        if not _NAME.fullmatch(name):
            raise InvalidRequest(f"{name[:80]!r} is not a name of a blob")
        return self._root / name

    def stat(self, name: str) -> BlobStat | None:
        with storing():
            return _stat(name, self.path_of(name))

    def read(self, name: str, byte_range: ByteRange = WHOLE) -> Iterator[bytes]:
        with storing(), self._open(name) as file:
            left = _seek(file, byte_range)
            while left > 0 and (piece := file.read(min(left, PIECE_BYTES))):
                yield piece
                left -= len(piece)

    def read_to(self, name: str, byte_range: Span | Last, sink: Sink) -> int:
        with storing(), self._open(name) as file:
            left, buffer = _seek(file, byte_range), piece_buffer()
            begin = position = file.tell()
            while left > 0 and (count := file.readinto(buffer[:left])):
                sink(position, buffer[:count])
                position, left = position + count, left - count
            check_whole(name, byte_range, position - begin)
            return os.fstat(file.fileno()).st_size

    def link(self, name: str) -> None:
        return None

    def put(self, name: str, data: bytes) -> None:
        staged = self._staging.new()
        try:
            self._staging.append(staged, data)
            self._put_staged(name, staged)
        finally:
            self._staging.discard(staged)

    def put_file(self, name: str, path: Path) -> None:
        with storing():
            staged = self._staging.copy_of(path)
        try:
            self._put_staged(name, staged)
        finally:
            self._staging.discard(staged)

    def delete(self, name: str) -> bool:
        with storing():
            return self.stat(name) is not None and self._disk.remove(self.path_of(name))

    def list(self, prefix: str = "", start_after: str = "", limit: int = 1000) -> BlobPage:
        with storing():
            found = list(islice(_walk(self._root, "", prefix, start_after), limit + 1))
        return BlobPage(tuple(found[:limit]), truncated=len(found) > limit)

    # ---- ``put`` of a staged file in three steps, for those who must do something in between

    def prepare(self, name: str, path: Path) -> None:
        """Makes the bytes at ``path`` and the place of the blob durable."""
        with storing():
            if self._durable:
                self._disk.sync(path)
            self._disk.make_dir(self.path_of(name).parent)

    def place(self, name: str, path: Path) -> None:
        """Gives the file its name: readers see it from now on."""
        with storing():
            self._disk.rename(path, self.path_of(name))

    def commit(self, name: str) -> None:
        """Makes the name durable."""
        if self._durable:
            with storing():
                self._disk.sync_dir(self.path_of(name).parent)

    def _put_staged(self, name: str, path: Path) -> None:
        self.prepare(name, path)
        self.place(name, path)
        self.commit(name)

    def _open(self, name: str) -> BufferedReader:
        try:
            fd = os.open(self.path_of(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound("no such blob") from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):  # a directory of blobs is none itself
            os.close(fd)
            raise NotFound("no such blob")
        return open(fd, "rb")


def _stat(name: str, path: str | Path) -> BlobStat | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    version = f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"
    return BlobStat(name, status.st_size, status.st_mtime, version)


def _seek(file: BufferedReader, byte_range: ByteRange) -> int:
    """Goes to where the range begins; how many bytes there are in it."""
    size_bytes = os.fstat(file.fileno()).st_size
    match byte_range:
        case Span(start, length):
            end = min(start + length, size_bytes)
        case From(start):
            end = size_bytes
        case Last(length):
            start, end = max(size_bytes - length, 0), size_bytes
    file.seek(start)
    return end - start


def _walk(directory: str | Path, base: str, prefix: str, start_after: str) -> Iterator[BlobStat]:
    """In the order of names; what cannot hold a wanted name is not looked into."""
    try:
        with os.scandir(directory) as entries:
            children = sorted(
                (e.name + "/" if e.is_dir(follow_symlinks=False) else e.name, e.path) for e in entries
            )
    except FileNotFoundError:
        return
    for entry, path in children:
        name = base + entry
        if name.endswith("/"):
            wanted = name.startswith(prefix) or prefix.startswith(name)
            if wanted and (name > start_after or start_after.startswith(name)):
                yield from _walk(path, name, prefix, start_after)
        elif (
            name > start_after
            and name.startswith(prefix)
            and not entry.startswith(".")
            and (found := _stat(name, path))
        ):
            yield found
