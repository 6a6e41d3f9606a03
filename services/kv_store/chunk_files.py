"""One node's chunks: content-addressed, sealed, immutable files.

<directory>/chunks/ab/abcd….arrow    stored: whole, verified, durable
<directory>/staging/                 being written, by this store (``put-…``) or by whoever was told the directory
"""

from __future__ import annotations

import logging
import os
import re
import stat
import threading
import time
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

from services.kv_store.disk import Disk, storing
from shared.errors import CorruptData, InvalidRequest, NotFound
from shared.kv_format import ChunkSummary, inspect_chunk, verify_chunk
from shared.kv_types import PIECE_BYTES, ChunkPage, ChunkStat, OpenedChunk

log = logging.getLogger(__name__)

DEFAULT_PAGE, LARGEST_PAGE = 1000, 10_000
_ID = re.compile(r"[0-9a-f]{8,64}")
_OWN_PREFIX = "put-"
_MOST_CACHED_LAYOUTS = 4096


def check_chunk_id(chunk_id: str) -> str:
    """Ids become file names, so only lower-case hex digits pass.

    Raises:
        InvalidRequest: says so.
    """
    if not _ID.fullmatch(chunk_id):
        raise InvalidRequest(f"chunk_id: {chunk_id[:80]!r} is not a chunk id (8 to 64 lower-case hex digits)")
    return chunk_id


class ChunkFiles:
    """Thread-safe; every method may block on the disk. The file system is the truth; the index serves listing and counting.

    Raises (any method): ``InvalidRequest`` for a malformed id, ``StorageFull``, ``InternalError`` when the disk fails.
    """

    def __init__(self, directory: Path, disk: Disk | None = None, stale_staging_s: float = 3600.0) -> None:
        self._disk = disk or Disk()
        self._chunks, self._staging = directory / "chunks", directory / "staging"
        self._lock = threading.Lock()  # held while files change names
        self._layouts: dict[str, tuple[tuple[int, int, int], OpenedChunk]] = {}
        self._sorted: list[str] | None = None
        with storing():
            self._disk.make_dir(self._chunks)
            self._disk.make_dir(self._staging)
            self._clean_staging(stale_staging_s)
            self._index = self._scan()

    @property
    def staging(self) -> Path:
        return self._staging

    @property
    def num_chunks(self) -> int:
        return len(self._index)

    @property
    def num_bytes(self) -> int:
        with self._lock:
            return sum(c.size_bytes for c in self._index.values())

    def stat(self, chunk_ids: Sequence[str]) -> list[ChunkStat]:
        return [self._stat(check_chunk_id(chunk_id)) for chunk_id in chunk_ids]

    def open(self, chunk_ids: Sequence[str]) -> list[OpenedChunk]:
        """Where the files lie. One whose head or footer is damaged is removed on the way, and so absent."""
        return [self._open(check_chunk_id(chunk_id)) for chunk_id in chunk_ids]

    def new_staged(self) -> Path:
        """Where this store may write a file to adopt."""
        return self._staging / f"{_OWN_PREFIX}{uuid.uuid4().hex}"

    def append(self, staged: Path, piece: bytes) -> None:
        with storing():
            self._disk.append(staged, piece)

    def discard(self, staged: Path) -> None:
        with storing():
            self._disk.remove(staged)

    def adopt(self, chunk_id: str, path: str | Path, replace: bool = False) -> bool:
        """Takes a staged file over; returns whether the chunk was stored already (unless ``replace``, the new file is dropped).
        The staged file is gone afterwards, whatever happened; what was stored stays readable at every moment.

        Raises:
            InvalidRequest: ``path`` is not a plain file in the staging directory.
            CorruptData: it is not a whole chunk file, or another chunk's.
        """
        target = self._path(check_chunk_id(chunk_id))
        staged = self._staged(path)
        try:
            with storing():
                existed = target.exists()
                if existed and not replace:
                    self._disk.sync_dir(target.parent)  # whoever renamed it may not have come to this yet
                else:
                    self._store(chunk_id, staged, target)
                return existed
        finally:
            self.discard(staged)

    def read(self, chunk_id: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """The file's bytes, or some of them, in pieces.

        Raises:
            NotFound: not stored.
        """
        try:
            file = open(self._path(check_chunk_id(chunk_id)), "rb", buffering=0)  # noqa: SIM115 (closed below)
        except FileNotFoundError:
            raise NotFound(f"chunk {chunk_id}: not stored") from None
        with file:
            left = os.fstat(file.fileno()).st_size - offset if length is None else length
            while left > 0 and (piece := os.pread(file.fileno(), min(left, PIECE_BYTES), offset)):
                yield piece
                offset += len(piece)
                left -= len(piece)

    def delete(self, chunk_ids: Sequence[str]) -> list[str]:
        """Those that were there."""
        paths = {chunk_id: self._path(check_chunk_id(chunk_id)) for chunk_id in chunk_ids}
        with storing(), self._lock:
            return [chunk_id for chunk_id, path in paths.items() if self._remove(chunk_id, path)]

    def page(self, start_after: str = "", limit: int = 0) -> ChunkPage:
        """In the order of ids."""
        limit = min(limit or DEFAULT_PAGE, LARGEST_PAGE)
        with self._lock:
            if self._sorted is None:
                self._sorted = sorted(self._index)
            start = bisect_right(self._sorted, start_after)
            chosen = self._sorted[start : start + limit]
            return ChunkPage(tuple(self._index[c] for c in chosen), truncated=start + limit < len(self._sorted))

    def check_invariants(self) -> None:
        """The index is what a scan of the directory finds, and every stored file is whole and under its own id."""
        with self._lock:
            found = self._scan()
            assert self._index == found, set(self._index) ^ set(found)
            assert self._sorted is None or self._sorted == sorted(found)
        for chunk_id in found:
            assert verify_chunk(self._path(chunk_id)).header.chunk_id == chunk_id

    def _store(self, chunk_id: str, staged: Path, target: Path) -> None:
        if verify_chunk(staged, chunk_id).header.chunk_id != chunk_id:
            raise CorruptData(f"chunk {chunk_id}: the file holds another chunk")
        self._disk.sync(staged)
        with self._lock:
            self._disk.make_dir(target.parent)
            try:
                self._disk.move(staged, target)
            finally:
                self._index[chunk_id] = self._stat(chunk_id)  # renamed or not, when the disk failed
                if not self._index[chunk_id].exists:
                    del self._index[chunk_id]
                self._sorted = None

    def _remove(self, chunk_id: str, path: Path) -> bool:
        removed = self._disk.remove(path)
        if self._index.pop(chunk_id, None):
            self._sorted = None
        self._layouts.pop(chunk_id, None)
        return removed

    def _stat(self, chunk_id: str) -> ChunkStat:
        try:
            status = os.stat(self._path(chunk_id))
        except FileNotFoundError:
            return ChunkStat(chunk_id, exists=False)
        return ChunkStat(chunk_id, True, status.st_size, status.st_mtime)

    def _open(self, chunk_id: str) -> OpenedChunk:
        path = self._path(chunk_id)
        try:
            status = os.stat(path)
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            known_stamp, opened = self._layouts.get(chunk_id, (None, None))
            if opened is None or known_stamp != stamp:
                opened = _opened(path, inspect_chunk(path))
                self._remember(chunk_id, stamp, opened)
        except (FileNotFoundError, NotFound):
            return OpenedChunk(chunk_id, exists=False)
        except CorruptData as error:
            log.warning("removed a damaged file: %s", error.detail)
            self._remove_if_damaged(chunk_id, path)
            return OpenedChunk(chunk_id, exists=False)
        return opened

    def _remember(self, chunk_id: str, stamp: tuple[int, int, int], opened: OpenedChunk) -> None:
        with self._lock:
            if len(self._layouts) >= _MOST_CACHED_LAYOUTS:
                self._layouts.pop(next(iter(self._layouts)))
            self._layouts[chunk_id] = (stamp, opened)

    def _remove_if_damaged(self, chunk_id: str, path: Path) -> None:
        with storing(), self._lock:  # it may have been replaced meanwhile
            try:
                inspect_chunk(path)
            except CorruptData:
                self._remove(chunk_id, path)
            except NotFound:
                pass

    def _staged(self, path: str | Path) -> Path:
        """``path`` as a child of the staging directory."""
        given = Path(path)
        if not given.is_absolute() or given.parent.resolve() != self._staging.resolve():
            raise InvalidRequest("path: not in the staging directory of this node")
        staged = self._staging / given.name
        try:
            status = os.lstat(staged)
        except FileNotFoundError:
            raise InvalidRequest("path: there is no such file in the staging directory") from None
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise InvalidRequest("path: not a plain file")
        return staged

    def _path(self, chunk_id: str) -> Path:
        return self._chunks / chunk_id[:2] / f"{chunk_id}.arrow"

    def _scan(self) -> dict[str, ChunkStat]:
        ids = (path.stem for path in self._chunks.glob("??/*.arrow"))
        stats = (self._stat(chunk_id) for chunk_id in ids if _ID.fullmatch(chunk_id))
        return {s.chunk_id: s for s in stats if s.exists}

    def _clean_staging(self, stale_s: float) -> None:
        """What a former life of this store left half-written, and what nobody adopted for so long."""
        for path in self._staging.iterdir():
            if path.name.startswith(_OWN_PREFIX) or path.lstat().st_mtime < time.time() - stale_s:
                self._disk.remove(path)


def _opened(path: Path, summary: ChunkSummary) -> OpenedChunk:
    return OpenedChunk(path.stem, True, str(path), summary.size_bytes, summary.layers)
