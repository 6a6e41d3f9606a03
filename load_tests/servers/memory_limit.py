"""Lets the kernel end processes for want of memory, and those alone."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_KILLED = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
LEFT_BYTES = 1 << 20  # a generator that has answered before lives on 16 MB more, an agent on 4


class NoMemoryLimit(Exception):
    """None can be had here; says why."""


class MemoryLimit:
    """A control group from construction to ``close``: whoever is put into it may have ``LEFT_BYTES`` more
    than he has, and is killed when he wants more."""

    def __init__(self, mount: Path = _MOUNT) -> None:
        """
        Raises:
            NoMemoryLimit: says why.
        """
        parent, limit, self._events = _interface(mount)
        try:
            self._group = Path(tempfile.mkdtemp(prefix="kvquilt-", dir=parent))
            (self._group / limit).write_text(str(LEFT_BYTES))
        except OSError as error:
            raise NoMemoryLimit(f"a control group for memory cannot be made: {error.strerror}") from error

    def put(self, pid: int) -> None:
        """What it has already stays where it was counted."""
        (self._group / "cgroup.procs").write_text(str(pid))

    @property
    def num_killed(self) -> int:
        """How many processes in it were killed for want of memory."""
        found = _KILLED.search((self._group / self._events).read_text())
        return int(found[1]) if found else 0

    def close(self) -> None:
        with contextlib.suppress(OSError):  # somebody is in it still: an empty one costs nothing
            os.rmdir(self._group)


def _interface(mount: Path) -> tuple[Path, str, str]:
    """Where groups are made, and the names of the limit and of the count of the killed."""
    if (mount / "memory").is_dir():
        return mount / "memory", "memory.limit_in_bytes", "memory.oom_control"
    controllers = mount / "cgroup.subtree_control"
    if controllers.exists() and "memory" in controllers.read_text().split():
        return mount, "memory.max", "memory.events"
    raise NoMemoryLimit("this machine has no control groups for memory")
