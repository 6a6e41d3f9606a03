"""What Milvus says, in the project's errors."""

from __future__ import annotations

import errno
import os

import pytest
from pymilvus.exceptions import MilvusException

from services.retrieval.milvus import translated
from shared.errors import InternalError, StorageFull


def test_a_full_disk_is_no_internal_error() -> None:
    said = str(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with pytest.raises(StorageFull, match="while indexing; delete documents"), translated("indexing"):
        raise MilvusException(code=1, message=said)


def test_what_is_not_known_is() -> None:
    with pytest.raises(InternalError, match="while indexing"), translated("indexing"):
        raise MilvusException(code=1, message="a surprise")
