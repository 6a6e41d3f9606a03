"""The directory in which files are written before they take their place: by this store (``put-…``) or by
whoever was told it."""

from __future__ import annotations

import os
import stat
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from services.kv_store.blobs.disk import Disk, Stamp, stamp_of, storing
from shared.errors import InvalidRequest, Unavailable
from shared.kv_types import PIECE_BYTES
from shared.private_files import FILE_MODE

_OWN_PREFIX = "put-"


class StagedFile:
    """A file of known size that is being filled, by several threads at once. One that comes too late is told
    so."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self._fd = path, fd
        self._lock = threading.Lock()
        self._num_writers, self._closed = 0, False

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """
        Raises:
            Unavailable: it was closed meanwhile; nobody waits for the bytes any more.
        """
        with self._lock:
            if self._closed:
                raise Unavailable("the fetch was given up")
            self._num_writers += 1
        try:
            left = memoryview(data)
            with storing():
                while left:
                    count = os.pwrite(self._fd, left, offset)
                    offset, left = offset + count, left[count:]
        finally:
            self._leave()

    def close(self) -> None:
        """Once. The descriptor goes with the last writer."""
        with self._lock:
            self._closed = True
            self._num_writers += 1
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._num_writers -= 1
            if self._closed and not self._num_writers:
                os.close(self._fd)


class Staging:
    """Thread-safe; every method may block. What a former life of the store left half-written is removed at
    once.

    Raises (any method): ``StorageFull``, ``InternalError``.
    """

    def __init__(
        self, directory: Path, disk: Disk | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.directory = directory
        self._disk, self._clock = disk or Disk(), clock
        self._foreign: dict[str, tuple[Stamp, float]] = {}
        with storing():
            self._disk.make_dir(directory)
            for path in directory.glob(f"{_OWN_PREFIX}*"):
                self._disk.remove(path)

    def new(self) -> Path:
        """A name that nobody else uses."""
        return self.directory / f"{_OWN_PREFIX}{uuid.uuid4().hex}"

    def allocate(self, size_bytes: int) -> StagedFile:
        """A new file of this size."""
        path = self.new()
        with storing():
            return StagedFile(path, self._disk.allocate(path, size_bytes))

    def append(self, path: Path, piece: bytes) -> None:
        with storing():
            self._disk.append(path, piece)

    def copy_of(self, path: Path) -> Path:
        """A new file with the bytes of another.

        Raises:
            FileNotFoundError: that one is gone.
        """
        with open(path, "rb", buffering=0) as source:
            target, offset = self.allocate(os.fstat(source.fileno()).st_size), 0
            try:
                while piece := source.read(PIECE_BYTES):
                    target.write(offset, piece)
                    offset += len(piece)
            except BaseException:
                self.discard(target.path)
                raise
            finally:
                target.close()
        return target.path

    def second_name(self, path: Path) -> Path:
        """Of a file that is here: it lives until both are gone."""
        name = self.new()
        with storing():
            os.link(path, name)
        return name

    def discard(self, path: Path) -> None:
        with storing():
            self._disk.remove(path)

    def given(self, path: str | Path) -> Path:
        """``path`` as a child of this directory; from now on its owner's alone.

        Raises:
            InvalidRequest: it is not a plain file here.
        """
        given = Path(path)
        if not given.is_absolute() or given.parent.resolve() != self.directory.resolve():
            raise InvalidRequest("path: not in the staging directory of this node")
        staged = self.directory / given.name
        try:
            status = os.lstat(staged)
        except FileNotFoundError:
            raise InvalidRequest("path: there is no such file in the staging directory") from None
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise InvalidRequest("path: not a plain file")
        staged.chmod(FILE_MODE)
        return staged

    def clean(self, stale_s: float) -> None:
        """Removes what others staged and nobody touched for ``stale_s`` seconds in which this store watched
        it. The files' times are compared with themselves only: a jump of the clock makes nothing old."""
        now, seen = self._clock(), {}
        with storing():
            for entry in os.scandir(self.directory):
                if entry.name.startswith(_OWN_PREFIX) or not entry.is_file(follow_symlinks=False):
                    continue
                with suppress(FileNotFoundError):  # adopted meanwhile
                    stamp = stamp_of(entry.path)
                    known, since = self._foreign.get(entry.name, (stamp, now))
                    seen[entry.name] = (stamp, since if known == stamp else now)
                    if now - seen[entry.name][1] >= stale_s:
                        self._disk.remove(Path(entry.path))
        self._foreign = seen
