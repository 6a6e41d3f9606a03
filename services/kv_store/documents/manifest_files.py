"""Manifests as files of the home node: the truth where there is no object store, else its mirror.

<directory>/manifests/<tenant>/<collection>/<hash of document id>.json    the documents
<directory>/manifests/<tenant>/<collection>/<hash>.damaged                what could not be read, kept for the operator
<directory>/removed/<number>.json                                         documents that are gone, their chunks still to be deleted
<directory>/bucket.json                                                   whose mirror this is; absent: nobody's
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from services.kv_store.blobs.directory import DirectoryBlobs
from services.kv_store.blobs.disk import Disk
from services.kv_store.blobs.protocol import Blobs, BlobStat, list_all
from services.kv_store.blobs.staging import Staging
from shared.kv_format import SealKeys

DOCUMENTS = "manifests/"
_FOLDERS = (DOCUMENTS, "removed/")
_ASIDE = ".damaged"
_NAME = re.compile(
    r"manifests/(?!\.)[A-Za-z0-9._-]+/(?!\.)[A-Za-z0-9._-]+/[0-9a-f]{40}\.json|removed/[0-9a-f]{32}\.json"
)
_BUCKET = "bucket.json"


def manifests_in(blobs: Blobs, below: str = "") -> Iterator[BlobStat]:
    """``below``: a folder. Names become paths: others than ours are not for us."""
    for folder in _FOLDERS:
        for blob in list_all(blobs, below + folder):
            if _NAME.fullmatch(blob.name.removeprefix(below)):
                yield blob


class ManifestFiles:
    """Files that ``put`` and ``remove`` have changed durably when they return. ``keys``: of the seals of what
    they hold; None: nothing is sealed. All methods raise ``OSError``, or what ``Blobs`` raise."""

    def __init__(self, directory: Path, disk: Disk, keys: SealKeys | None = None) -> None:
        self.keys = keys
        self._directory, self._disk = directory, disk
        self._blobs = DirectoryBlobs(directory, Staging(directory / "staging-documents", disk), disk)
        for folder in _FOLDERS:
            self._disk.make_dir(directory / folder)

    def names(self, below: str = "") -> Iterator[str]:
        return (blob.name for blob in manifests_in(self._blobs, below))

    def read(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def size_bytes(self, name: str) -> int:
        return (self._directory / name).stat().st_size

    def put(self, name: str, data: bytes) -> None:
        """In one step: whatever happens, the old bytes or the new ones are there."""
        self._blobs.put(name, data)

    def remove(self, name: str) -> None:
        path = self._directory / name
        if self._disk.remove(path):
            self._disk.sync_dir(path.parent)

    def set_aside(self, name: str) -> None:
        """Keeps a damaged one for the operator under another name."""
        path = self._directory / name
        self._disk.rename(path, path.with_suffix(_ASIDE))
        self._disk.sync_dir(path.parent)

    def put_aside(self, name: str, data: bytes) -> None:
        """Keeps a document's damaged bytes as if they had been set aside here."""
        if name.startswith(DOCUMENTS):
            self._blobs.put(name.removesuffix(".json") + _ASIDE, data)

    def aside(self) -> Iterator[str]:
        """Names of the documents that were set aside."""
        for path in (self._directory / DOCUMENTS).glob(f"*/*/*{_ASIDE}"):
            yield str(path.relative_to(self._directory).with_suffix(".json"))

    def is_aside(self, name: str) -> bool:
        return name.startswith(DOCUMENTS) and self._aside(name).exists()

    def drop_aside(self, name: str) -> None:
        """Drops what was set aside: it is needed no more."""
        if self.is_aside(name):
            self._disk.remove(self._aside(name))
            self._disk.sync_dir(self._aside(name).parent)

    def read_aside(self, name: str) -> bytes:
        return self._aside(name).read_bytes()

    def bucket(self) -> bytes | None:
        """The marker of the bucket whose mirror this is."""
        return self.read(_BUCKET)

    def now_mirrors(self, bucket: bytes | None) -> None:
        """None: from now on these files are the truth themselves."""
        if bucket is None:
            self.remove(_BUCKET)
        elif self.bucket() != bucket:
            self.put(_BUCKET, bucket)

    def _aside(self, name: str) -> Path:
        return (self._directory / name).with_suffix(_ASIDE)
