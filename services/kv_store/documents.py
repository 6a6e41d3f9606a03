"""Documents as immutable manifests, and the reference counts that follow from them.

    <directory>/manifests/<tenant>/<collection>/<hash of document id>.json    the documents
    <directory>/removed/<number>.json                                         manifests whose chunks are still to be deleted

A manifest that goes away is kept in ``removed/`` for a while: there it is its own journal, so that a crash between removing the
document and deleting its chunks leaves no chunk behind. Reference counts are never stored.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import uuid
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from services.kv_store.disk import Disk, storing
from services.kv_store.manifest_json import decode, encode
from shared.errors import CorruptData, InvalidRequest, NotFound
from shared.kv_types import Manifest, ManifestPage
from shared.request import check_name

log = logging.getLogger(__name__)

DEFAULT_PAGE, LARGEST_PAGE = 100, 1000
PAGE_BYTES = 1 << 20
LONGEST_DOCUMENT_ID = 2048
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Removal:
    """A manifest that is gone, with the chunks it named."""

    path: Path
    chunk_ids: tuple[str, ...]


class Documents:
    """Thread-safe; every method may block on the disk. Raises (any method) ``StorageFull``, ``InternalError``."""

    def __init__(self, directory: Path, disk: Disk | None = None) -> None:
        self._disk = disk or Disk()
        self._manifests, self._removed, self._staging = directory / "manifests", directory / "removed", directory / "staging"
        self._lock = threading.Lock()
        self._sorted: list[Key] | None = None
        with storing():
            for path in (self._manifests, self._removed, self._staging):
                self._disk.make_dir(path)
            self._set_damaged_aside()
            self._chunks_of, self._pending = self._scan()
        self._references = Counter(c for chunk_ids in self._chunks_of.values() for c in chunk_ids)

    @property
    def num_documents(self) -> int:
        return len(self._chunks_of)

    def references(self, chunk_id: str) -> int:
        """How many documents refer to the chunk."""
        return self._references[chunk_id]

    def pending(self) -> list[Removal]:
        """Removed manifests whose chunks may still be stored."""
        with self._lock:
            return list(self._pending.values())

    def finish(self, removal: Removal) -> None:
        """The chunks of ``removal`` that nothing refers to are deleted everywhere."""
        with storing(), self._lock:
            self._disk.remove(removal.path)
            del self._pending[removal.path]

    def put(self, manifest: Manifest) -> Removal | None:
        """Stores a document in one step; what it replaced is pending.

        Raises:
            InvalidRequest: a name or the id is not allowed.
        """
        key = _checked_key(manifest)
        path = self._path(key)
        with storing(), self._lock:
            try:
                removal = self._keep_as_removed(key, path)
                self._place(encode(manifest), path)
            finally:
                self._reload(key)
            return removal

    def remove(self, tenant: str, collection: str, document_id: str) -> Removal:
        """
        Raises:
            NotFound: no such document.
        """
        key = (tenant, collection, document_id)
        path = self._path(key)
        with storing(), self._lock:
            if key not in self._chunks_of:
                raise _absent(key)
            removal = self._new_removal(key)
            try:
                self._disk.move(path, removal.path)
                self._disk.sync_dir(path.parent)
            finally:
                self._note(removal)
                self._reload(key)
            return removal

    def get(self, tenant: str, collection: str, document_id: str) -> Manifest:
        """
        Raises:
            NotFound: no such document.
            CorruptData: its manifest is damaged.
        """
        key = (tenant, collection, document_id)
        try:
            return decode(self._path(key).read_bytes())
        except FileNotFoundError:
            raise _absent(key) from None
        except ValueError as error:
            log.error("the manifest of %r is damaged: %s", key, error)
            raise CorruptData(f"document {document_id!r}: its manifest is damaged; ingest the document again") from None

    def page(self, tenant: str, collection: str, start_after: str, limit: int, summary: bool) -> ManifestPage:
        """Documents of ``collection`` (empty: of all) in the order of collection and id, up to ``limit`` or 1 MiB.

        ``start_after`` is the ``Manifest.cursor`` of the last one known.
        """
        limit = min(limit or DEFAULT_PAGE, LARGEST_PAGE)
        manifests: list[Manifest] = []
        num_bytes = 0
        for key in self._keys_after(tenant, collection, start_after):
            if len(manifests) >= limit or num_bytes >= PAGE_BYTES:
                return ManifestPage(tuple(manifests), truncated=True)
            try:
                manifest = self.get(*key)
            except (NotFound, CorruptData):
                continue  # removed meanwhile; damaged ones are in the log
            num_bytes += 0 if summary else self._path(key).stat().st_size
            manifests.append(_summary(manifest) if summary else manifest)
        return ManifestPage(tuple(manifests), truncated=False)

    def check_invariants(self) -> None:
        """Documents, counts and pending removals are what the manifests on the disk say."""
        with self._lock:
            chunks_of, pending = self._scan()
            assert self._chunks_of == chunks_of
            assert self._pending == pending
            assert self._references == Counter(c for chunk_ids in chunks_of.values() for c in chunk_ids)
            assert self._sorted is None or self._sorted == sorted(chunks_of)

    def _keep_as_removed(self, key: Key, path: Path) -> Removal | None:
        """A copy of the document's manifest if there is one. Until the document is replaced, its chunks count as referenced."""
        if key not in self._chunks_of or not path.exists():
            return None
        removal = self._new_removal(key)
        try:
            self._place(path.read_bytes(), removal.path)
        finally:
            self._note(removal)
        return removal

    def _new_removal(self, key: Key) -> Removal:
        return Removal(self._removed / f"{uuid.uuid4().hex}.json", self._chunks_of[key])

    def _note(self, removal: Removal) -> None:
        if removal.path.exists():
            self._pending[removal.path] = removal

    def _place(self, data: bytes, path: Path) -> None:
        staged = self._staging / f"put-{uuid.uuid4().hex}"
        try:
            self._disk.write(staged, data)
            self._disk.make_dir(path.parent)
            self._disk.move(staged, path)
        finally:
            self._disk.remove(staged)

    def _reload(self, key: Key) -> None:
        """Makes memory agree with the disk, however far the change of ``key`` came."""
        for chunk_id in self._chunks_of.pop(key, ()):
            self._references[chunk_id] -= 1
            if not self._references[chunk_id]:
                del self._references[chunk_id]
        path = self._path(key)
        self._sorted = None
        if path.exists():
            try:
                self._chunks_of[key] = _chunk_ids(decode(path.read_bytes()))
            except ValueError as error:
                log.error("manifest %s is damaged (%s); the document is lost", path, error)
            else:
                self._references.update(self._chunks_of[key])

    def _keys_after(self, tenant: str, collection: str, start_after: str) -> list[Key]:
        after_collection, _, after_document = ("", "", start_after) if collection else start_after.partition("/")
        with self._lock:
            if self._sorted is None:
                self._sorted = sorted(self._chunks_of)
            start = bisect_right(self._sorted, (tenant, collection or after_collection, after_document))
            end = bisect_right(self._sorted, (tenant, collection, "\U0010ffff")) if collection else len(self._sorted)
            return [key for key in self._sorted[start:end] if key[0] == tenant]

    def _path(self, key: Key) -> Path:
        tenant, collection, document_id = key
        check_name("tenant", tenant)
        check_name("collection", collection)
        name = hashlib.blake2b(document_id.encode(), digest_size=20).hexdigest()
        return self._manifests / tenant / collection / f"{name}.json"

    def _scan(self) -> tuple[dict[Key, tuple[str, ...]], dict[Path, Removal]]:
        live = (decode(path.read_bytes()) for path in self._manifests.glob("*/*/*.json"))
        removed = ((path, decode(path.read_bytes())) for path in self._removed.glob("*.json"))
        return {_key(m): _chunk_ids(m) for m in live}, {path: Removal(path, _chunk_ids(m)) for path, m in removed}

    def _set_damaged_aside(self) -> None:
        """A manifest that fails its checksum is kept for the operator under another name; the document must be ingested again."""
        for path in [*self._manifests.glob("*/*/*.json"), *self._removed.glob("*.json")]:
            try:
                decode(path.read_bytes())
            except ValueError as error:
                log.error("manifest %s is damaged (%s); set aside", path, error)
                self._disk.move(path, path.with_suffix(".damaged"))


def _key(manifest: Manifest) -> Key:
    return manifest.tenant, manifest.collection, manifest.document_id


def _checked_key(manifest: Manifest) -> Key:
    if not 0 < len(manifest.document_id) <= LONGEST_DOCUMENT_ID:
        raise InvalidRequest(f"manifest.document_id: must have 1 to {LONGEST_DOCUMENT_ID} characters")
    return _key(manifest)


def _chunk_ids(manifest: Manifest) -> tuple[str, ...]:
    """Each once: a document refers to a chunk or it does not."""
    return tuple(dict.fromkeys(c.chunk_id for c in manifest.chunks))


def _summary(manifest: Manifest) -> Manifest:
    return replace(manifest, chunks=tuple(replace(c, token_ids=(), text="") for c in manifest.chunks))


def _absent(key: Iterable[str]) -> NotFound:
    _, collection, document_id = key
    return NotFound(f"document {document_id!r}: not in collection {collection!r}")
