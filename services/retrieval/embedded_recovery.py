"""Recovers the directory of an embedded Milvus from a process that was killed while it wrote there.

Rows are safe without it: milvus-lite keeps a write-ahead log. But it neither writes its vector indexes nor
makes or drops collections atomically, and fails for good over what is left of them."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np

log = logging.getLogger(__name__)
_COLLECTIONS = ("collections", "databases/*/collections")


def recover(directory: Path) -> None:
    """The caller holds the lock of ``directory``, and nothing in it is open."""
    for collection in (path for pattern in _COLLECTIONS for path in directory.glob(f"{pattern}/*")):
        if not (collection / "schema.json").is_file():
            log.warning(
                "removing what is left of a collection that was being made or dropped: %s", collection
            )
            shutil.rmtree(collection)
            continue
        for index in collection.glob("partitions/*/indexes/*.idx"):
            if not _is_whole(index):
                log.warning("removing a vector index that was being written; it is made anew: %s", index)
                index.unlink()


def _is_whole(index: Path) -> bool:
    try:
        np.load(index, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError):
        return False
    return True
