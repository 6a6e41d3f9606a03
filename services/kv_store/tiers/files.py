"""The files of one of a node's own tiers, and where in its directory they lie.

    <directory>/chunks/ab/abcd….arrow          primary copies: the only whole ones, durable, never evicted
    <directory>/cache/chunks/ab/abcd….arrow    copies of what is whole elsewhere: evicted when room is needed
    <directory>/staging/                       being written

A chunk is in one of the two places. A tier in shared memory has copies only.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from services.kv_store.blobs.directory import DirectoryBlobs
from services.kv_store.blobs.disk import Disk, storing
from services.kv_store.blobs.protocol import list_all
from services.kv_store.blobs.staging import Staging
from services.kv_store.tiers.chunk_names import CHUNKS, blob_of, chunk_of

_LARGEST_LIST = 10_000


@dataclass(frozen=True, slots=True)
class FileCopy:
    """``primary``: not evictable, for it may be the only one. ``modified_s``: seconds since 1970."""

    chunk_id: str
    size_bytes: int
    modified_s: float
    primary: bool = False


class TierFiles:
    """Thread-safe, and knows nothing by itself: the file system is asked every time."""

    def __init__(self, directory: Path, staging: Staging, disk: Disk | None) -> None:
        self._directory = directory
        self.cache = DirectoryBlobs(directory / "cache", staging, disk, durable=False)
        self.primary = DirectoryBlobs(directory, staging, disk)
        self._disk = disk or Disk()

    def blobs(self, primary: bool) -> DirectoryBlobs:
        return self.primary if primary else self.cache

    def path_of(self, copy: FileCopy) -> Path:
        return self.blobs(copy.primary).path_of(blob_of(copy.chunk_id))

    def free_bytes(self) -> int:
        with storing():
            return self._disk.free_bytes(self._directory)

    def sync_removal(self, copy: FileCopy) -> None:
        """Makes it durable that the copy is gone."""
        with storing():
            self._disk.sync_dir(self.path_of(copy).parent)

    def find(self, chunk_id: str, copies_only: bool = False) -> FileCopy | None:
        for primary in [False] if copies_only else [True, False]:
            stat = self.blobs(primary).stat(blob_of(chunk_id))
            if stat is not None:
                return FileCopy(chunk_id, stat.size_bytes, stat.modified_s, primary)
        return None

    def scan(self, clean: bool = False, primary_no_more: Container[str] = ()) -> dict[str, FileCopy]:
        """Finds what is there; ``clean``: and removes copies where there is a primary copy too (a crash came
        in between). ``primary_no_more``: of these only copies count."""
        found = {c.chunk_id: c for c in self._list(True) if c.chunk_id not in primary_no_more}
        for copy in self._list(False):
            if copy.chunk_id not in found:
                found[copy.chunk_id] = copy
            elif clean:
                self.cache.delete(blob_of(copy.chunk_id))
        return found

    def _list(self, primary: bool) -> Iterator[FileCopy]:
        for blob in list_all(self.blobs(primary), CHUNKS, page_len=_LARGEST_LIST):
            if chunk_id := chunk_of(blob.name):
                yield FileCopy(chunk_id, blob.size_bytes, blob.modified_s, primary)
