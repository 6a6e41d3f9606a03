"""Every keeper of blobs there is, empty, by name: what the contract and the state machine run on."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.kv_store.blobs import Blobs
from services.kv_store.object_blobs import ObjectBlobs
from tests.dict_blobs import DictBlobs
from tests.minio_server import settings_for

KEEPERS = ["dict", "objects", "objects under a prefix"]


@contextmanager
def keeper(kind: str, endpoint: str) -> Iterator[Blobs]:
    """``endpoint``: of the S3 server."""
    if kind == "dict":
        yield DictBlobs()
    else:
        yield ObjectBlobs(settings_for(endpoint, prefix="a/b" if "prefix" in kind else ""))


@contextmanager
def temporary_directory(parent: str | None = None) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="kvquilt-blobs-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
