"""The directory of a node's memory tier: shared memory that belongs to one agent, and goes with it."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
from pathlib import Path
from typing import Self

from shared.private_files import DIRECTORY_MODE, make_private

log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
_LOCK = "lock"
_MODEST_BYTES = 2 << 30
_SHARE_OF_FREE = 4


class MemoryDirectory:
    """Held by one agent at a time: a second one of the same node does without. What a killed one left is
    there to be used."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        """Use ``claim``."""
        self.path, self._lock_fd = path, lock_fd

    @classmethod
    def claim(cls, path: Path) -> Self | None:
        """None: there is no shared memory, or the directory is somebody else's."""
        try:
            path.mkdir(DIRECTORY_MODE, parents=path.parent != SHARED_MEMORY, exist_ok=True)
            if path.is_symlink() or path.stat().st_uid != os.geteuid():
                raise PermissionError("it belongs to somebody else")
            make_private(path)
            fd = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
                raise
        except OSError as error:
            log.warning("no memory tier in %s: %s", path, error)
            return None
        return cls(path, fd)

    def remove(self) -> None:
        """With everything in it. Who reads a file goes on."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock_fd)


def remove_what_was_left(path: Path) -> None:
    """Removes what an agent that was killed had in memory, unless another one uses it by now."""
    if path.is_dir():
        left = MemoryDirectory.claim(path)
        if left is not None:
            left.remove()


def memory_directory(data_directory: Path, shared_memory: Path = SHARED_MEMORY) -> Path:
    """Names the memory tier of ``data_directory``'s agent, unless that is told otherwise."""
    name = hashlib.blake2b(str(data_directory.resolve()).encode(), digest_size=8).hexdigest()
    return shared_memory / f"kvquilt-{name}"


def modest_capacity(path: Path) -> int:
    """Bytes for a memory tier whose capacity nobody set: 2 GiB, or a quarter of what the file system has free
    and the tier itself holds, whichever is less."""
    stats = os.statvfs(path)
    held = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    return min(_MODEST_BYTES, (stats.f_bavail * stats.f_frsize + held) // _SHARE_OF_FREE)
