"""The file operations that durability is made of, as an interface: tests pass a full or a failing disk."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from shared.errors import InternalError, KvquiltError
from shared.kv_format import storage_error
from shared.private_files import DIRECTORY_MODE, FILE_MODE, open_private

log = logging.getLogger(__name__)


Stamp = tuple[int, int, int]
"""Of a file that nobody changes it stays the same: inode, size, and time of the last change, which is
compared with itself only."""


class Disk:
    """A disk; what a method did is durable when it returns, if it does not say otherwise. All raise
    ``OSError``."""

    def make_dir(self, path: Path) -> None:
        """With its parents; the names of the new ones are durable."""
        if path.is_dir():
            return
        self.make_dir(path.parent)
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        self.sync_dir(path.parent)

    def append(self, path: Path, data: bytes) -> None:
        """Not yet durable: ``sync`` follows after the last piece."""
        with open(path, "ab", opener=open_private) as file:
            file.write(data)

    def allocate(self, path: Path, size_bytes: int) -> int:
        """A descriptor of a new file whose space is taken already: filling it cannot fail for want of space.
        Not durable."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            if size_bytes:
                os.posix_fallocate(fd, 0, size_bytes)
        except OSError:
            os.close(fd)
            path.unlink()
            raise
        return fd

    def sync(self, path: Path) -> None:
        """Makes a file durable that somebody else wrote."""
        _fsync(path)

    def rename(self, source: Path, target: Path) -> None:
        """Replaces ``target`` in one step; not durable before ``sync_dir``."""
        os.replace(source, target)

    def remove(self, path: Path) -> bool:
        """Whether the file was there. After a power failure it may be there again."""
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def sync_dir(self, path: Path) -> None:
        _fsync(path)

    def free_bytes(self, path: Path) -> int:
        """Returns the bytes that may still be written where ``path`` is."""
        stats = os.statvfs(path)
        return stats.f_bavail * stats.f_frsize


class VolatileDisk(Disk):
    """A disk of which nothing needs to survive the machine."""

    def sync(self, path: Path) -> None:
        pass

    def sync_dir(self, path: Path) -> None:
        pass


@contextlib.contextmanager
def storing() -> Iterator[None]:
    """Makes an error for the caller of what the disk reports; every other ``OSError`` is the operator's
    business."""
    try:
        yield
    except OSError as error:
        full = storage_error(error)
        if isinstance(full, KvquiltError):
            raise full from None
        log.exception("the disk failed")
        raise InternalError("the store's disk failed; the service's log has the reason") from None


def stamp_of(path: str | Path) -> Stamp:
    """
    Raises:
        FileNotFoundError
    """
    status = os.stat(path, follow_symlinks=False)
    return status.st_ino, status.st_size, status.st_mtime_ns


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
