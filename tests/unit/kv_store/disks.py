"""Disks that fail: the seam of ``services.kv_store.blobs.disk`` with trouble at a chosen operation."""

from __future__ import annotations

import errno
from collections.abc import Callable
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


class QuickDisk(TroubledDisk):
    """Does everything but wait for the device."""

    def __init__(self) -> None:
        super().__init__(-1, Crash)
