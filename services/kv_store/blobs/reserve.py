"""Room that is kept on a disk for what must be written when there is no other: to delete documents is how an
operator makes room, and takes a journal."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from services.kv_store.blobs.disk import Disk
from shared.errors import StorageFull

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

RESERVE_BYTES = 4 << 20
"""The journal of a document of some ten thousand chunks."""


class Reserve:
    """A file that takes the room, until it is needed. Not thread-safe."""

    def __init__(self, path: Path, disk: Disk, num_bytes: int = RESERVE_BYTES) -> None:
        """Takes nothing yet."""
        self._path, self._disk, self._num_bytes = path, disk, num_bytes

    def hold(self) -> None:
        """Takes the room, if there is any and it is not taken yet."""
        if not self._path.exists():
            try:
                os.close(self._disk.allocate(self._path, self._num_bytes))
            except OSError as error:
                log.warning("no room is kept for deleting documents: %s", error.strerror)

    def lend(self, write: Callable[[], ResultT]) -> ResultT:
        """``write``, and again in the room that was kept, if the disk was full.

        Raises:
            StorageFull: it has been lent already, or was not enough.
        """
        try:
            return write()
        except StorageFull:
            if not self._disk.remove(self._path):
                raise
            log.warning("the disk is full: what deletes documents is written where room was kept for it")
            return write()
