"""Names that chunks may have, and the names of their blobs: the same in every tier."""

from __future__ import annotations

import re
from collections.abc import Iterable

from shared.errors import InvalidRequest

DEFAULT_PAGE, LARGEST_PAGE = 1000, 10_000
CHUNKS = "chunks/"
_ID = re.compile(r"[0-9a-f]{8,64}")
_BLOB = re.compile(CHUNKS + r"([0-9a-f]{2})/(\1[0-9a-f]{6,62})\.arrow")


def check_chunk_ids(chunk_ids: Iterable[str]) -> list[str]:
    """Raises like ``check_chunk_id``."""
    return [check_chunk_id(c) for c in chunk_ids]


def check_chunk_id(chunk_id: str) -> str:
    """Ids become file names, so only lower-case hex digits pass.

    Raises:
        InvalidRequest: says so.
    """
    if not _ID.fullmatch(chunk_id):
        raise InvalidRequest(f"chunk_id: {chunk_id[:80]!r} is not a chunk id (8 to 64 lower-case hex digits)")
    return chunk_id


def blob_of(chunk_id: str) -> str:
    """Blobs in the order of their names are chunks in the order of their ids."""
    return f"{CHUNKS}{chunk_id[:2]}/{chunk_id}.arrow"


def chunk_of(blob: str) -> str | None:
    """The chunk whose blob is called so."""
    found = _BLOB.fullmatch(blob)
    return found[2] if found else None
