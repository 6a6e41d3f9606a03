"""Disks that fail: the seam of ``services.kv_store.blobs.disk`` with trouble at a chosen operation."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from services.kv_store.blobs.disk import Disk


class Crash(BaseException):
    """The process died here: nothing of it runs any more."""


class TroubledDisk(Disk):
    """Works until operation ``trouble_at`` (counted from 0), which ``happen``s half-way where that is
    possible."""

    def __init__(self, trouble_at: int, happen: Callable[[], BaseException]) -> None:
        self.num_operations = 0
        self._trouble_at, self._happen = trouble_at, happen

    def make_dir(self, path: Path) -> None:
        if not path.is_dir():
            self._operation()
        super().make_dir(path)

    def append(self, path: Path, data: bytes) -> None:
        self._operation(lambda: path.write_bytes(data[: len(data) // 2]))
        super().append(path, data)

    def sync(self, path: Path) -> None:
        self._operation()

    def allocate(self, path: Path, size_bytes: int) -> int:
        self._operation()
        return super().allocate(path, size_bytes)

    def rename(self, source: Path, target: Path) -> None:
        self._operation()
        super().rename(source, target)
        self._operation()  # between the rename and making it durable

    def remove(self, path: Path) -> bool:
        self._operation()
        return super().remove(path)

    def sync_dir(self, path: Path) -> None:
        pass  # directories of these tests need not survive the machine

    def _operation(self, half: Callable[[], object] = lambda: None) -> None:
        self.num_operations += 1
        if self._is_troubled(self.num_operations - 1):
            half()
            raise self._happen()

    def _is_troubled(self, operation: int) -> bool:
        return operation == self._trouble_at


class FullDisk(TroubledDisk):
    """No space for one operation (from which on there is some again)."""

    def __init__(self, full_at: int) -> None:
        super().__init__(full_at, lambda: OSError(errno.ENOSPC, "No space left on device"))

    def remove(self, path: Path) -> bool:
        return Disk.remove(self, path)  # needs no space


class DyingDisk(TroubledDisk):
    """From one operation on, none is done any more."""

    def __init__(self, dies_at: int) -> None:
        super().__init__(dies_at, Crash)

    def _is_troubled(self, operation: int) -> bool:
        return operation >= self._trouble_at


class LosingDisk(DyingDisk):
    """Dies as that one, or not at all, and its machine loses power: ``lose_power`` leaves below ``base`` what
    was there at the start and what was made durable since. Bytes that were not synced are gone, and so are
    changes of a directory that was not synced: new names, and that an old one was removed or replaced.

    ``names_survive``: a file system may write names down before the bytes, so of a directory everything is
    left, but of files only what was synced.
    """

    def __init__(self, base: Path, dies_at: int = 10**9, names_survive: bool = False) -> None:
        super().__init__(dies_at)
        self._base, self._names_survive = base, names_survive
        self._bytes: dict[int, bytes] = {}  # by inode
        self._names: dict[Path, dict[str, int | None]] = {}  # of each directory: name to inode, of files
        self._held: list[int] = []  # while a file is open, no other one gets its inode
        for path in (base, *base.rglob("*")):
            self._note_names(path) if path.is_dir() else self._note_bytes(path)

    def sync(self, path: Path) -> None:
        super().sync(path)
        self._note_bytes(path)

    def sync_dir(self, path: Path) -> None:
        self._operation()
        self._note_names(path)

    def lose_power(self) -> None:
        if self._names_survive:
            for path in (self._base, *self._base.rglob("*")):
                if path.is_dir():
                    self._note_names(path)
        for child in self._base.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
        self._restore(self._base)
        while self._held:
            os.close(self._held.pop())

    def _note_bytes(self, path: Path) -> None:
        self._bytes[path.stat().st_ino] = path.read_bytes()
        self._held.append(os.open(path, os.O_RDONLY))

    def _note_names(self, directory: Path) -> None:
        self._names[directory] = {
            path.name: None if path.is_dir() else path.stat().st_ino for path in directory.iterdir()
        }
        self._held += [os.open(path, os.O_RDONLY) for path in directory.iterdir()]

    def _restore(self, directory: Path) -> None:
        for name, inode in self._names.get(directory, {}).items():
            path = directory / name
            if inode is None:
                path.mkdir()
                self._restore(path)
            else:
                path.write_bytes(self._bytes.get(inode, b""))


@contextmanager
def power_fails(disk: LosingDisk) -> Iterator[None]:
    """At the operation at which ``disk`` dies, or in the end."""
    try:
        yield
    except Crash:
        pass
    finally:
        disk.lose_power()


class QuickDisk(TroubledDisk):
    """Does everything but wait for the device."""

    def __init__(self) -> None:
        super().__init__(-1, Crash)


class SmallDisk(QuickDisk):
    """Its files hold ``room`` bytes at most. A new name needs one, too."""

    def __init__(self, directory: Path, room: int) -> None:
        super().__init__()
        self._directory, self.room = directory, room

    def allocate(self, path: Path, size_bytes: int) -> int:
        self._take(size_bytes)
        return super().allocate(path, size_bytes)

    def append(self, path: Path, data: bytes) -> None:
        self._take(len(data))
        super().append(path, data)

    def free_bytes(self, path: Path) -> int:
        return self.room - sum(f.stat().st_size for f in self._directory.rglob("*") if f.is_file())

    def _take(self, num_bytes: int) -> None:
        if num_bytes > self.free_bytes(self._directory):
            raise OSError(errno.ENOSPC, "No space left on device")
