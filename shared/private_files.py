"""Keeps what the services write from other users of the machine: KV turns back into text, and so do
manifests, index and logs.

A service's process calls ``keep_private`` once; ``make_private`` takes back what earlier versions gave away.
Models in the cache stay as readable as their user's own files: they hold nobody's documents.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

UMASK = 0o077
FILE_MODE, DIRECTORY_MODE = 0o600, 0o700


def keep_private() -> None:
    """From now on nobody but their owner may use the files that this process makes, and those that it
    starts."""
    os.umask(UMASK)


def open_private(path: str, flags: int) -> int:
    """The ``opener`` of a file that is its owner's alone, whatever the process lets others do."""
    return os.open(path, flags, FILE_MODE)


def make_private_directory(path: Path) -> None:
    """A directory that is its owner's alone, with everything that is in it, and so are those above it that
    are made with it."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing):
        directory.mkdir(DIRECTORY_MODE, exist_ok=True)
    make_private(path)


def make_private(root: Path) -> None:
    """Takes from everybody but its owner what they may do with ``root`` and everything below it. Nobody comes
    through a directory that is private already: what lies in it is not looked at. Logs what belongs to
    somebody else and stays as it was."""
    if not root.exists() or not _is_shared(root.stat()):
        return
    left = [path for path in _all_below(root) if not _made_private(path)]
    log.info("earlier, others could use %s; now only its owner can", root)
    if left:
        log.warning(
            "%d files belong to somebody else and stay usable by others: %s and what follows",
            len(left),
            left[0],
        )


def _all_below(root: Path) -> Iterator[Path]:
    """``root`` first, so that the rest is out of reach whatever happens in between."""
    yield root
    for directory, names, files in os.walk(root):
        yield from (Path(directory, name) for name in (*names, *files))


def _made_private(path: Path) -> bool:
    try:
        status = path.lstat()
        if not stat.S_ISLNK(status.st_mode) and _is_shared(status):
            path.chmod(stat.S_IMODE(status.st_mode) & ~UMASK)
    except FileNotFoundError:  # removed meanwhile
        pass
    except PermissionError:
        return False
    return True


def _is_shared(status: os.stat_result) -> bool:
    return bool(status.st_mode & UMASK)
