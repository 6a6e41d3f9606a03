"""Every keeper of blobs there is, empty, by name: what the contract and the state machine run on."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.kv_store.blobs.directory import DirectoryBlobs
from services.kv_store.blobs.disk import Disk, VolatileDisk
from services.kv_store.blobs.protocol import Blobs
from services.kv_store.blobs.staging import Staging
from services.kv_store.s3.bucket import ObjectBlobs
from tests.minio_server import settings_for

KEEPERS = ["memory", "disk", "objects", "objects under a prefix"]
_SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def keeper(kind: str, endpoint: str) -> Iterator[Blobs]:
    """``endpoint``: of the S3 server."""
    if kind.startswith("objects"):
        yield ObjectBlobs(settings_for(endpoint, prefix="a/b" if "prefix" in kind else ""))
        return
    in_memory = kind == "memory" and _SHARED_MEMORY.is_dir()
    with temporary_directory(_SHARED_MEMORY if in_memory else None) as directory:
        disk = VolatileDisk() if kind == "memory" else Disk()
        yield DirectoryBlobs(
            directory / "blobs", Staging(directory / "staging", disk), disk, durable=kind == "disk"
        )
        assert not list((directory / "staging").iterdir())


@contextmanager
def temporary_directory(parent: Path | None = None) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="kvquilt-blobs-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
