"""Has a small file system of one's own, which can be filled up."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from pathlib import Path

_BLOCK_BYTES = 1 << 20
_BALLAST = "ballast"


class NoSmallDisk(Exception):
    """None can be had here; says why."""


class SmallDisk:
    """A tmpfs, mounted at ``path`` from construction to ``close``: the only kind that needs neither a device
    nor a tool. Only root may mount it."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        """
        Raises:
            NoSmallDisk: says why.
        """
        self.path, self._ballast = path, path / _BALLAST
        path.mkdir(parents=True, exist_ok=True)
        if os.geteuid() != 0:
            raise NoSmallDisk("to mount a small file system needs root")
        options = f"size={size_bytes},mode=0700"
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if mounted.returncode:
            raise NoSmallDisk(f"a small file system cannot be mounted: {mounted.stderr.strip()}")

    def fill(self) -> None:
        """Takes all the room that is left now."""
        with open(self._ballast, "ab", buffering=0) as ballast:
            block = bytes(_BLOCK_BYTES)
            while block:
                try:
                    ballast.write(block)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    block = block[: len(block) // 2]

    def free(self) -> None:
        """Gives back what ``fill`` took."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Whatever still has files open there keeps them until it ends."""
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run(["umount", "--lazy", str(self.path)], check=True, capture_output=True)
