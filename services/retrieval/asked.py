"""Holds what a search is asked, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.errors import InvalidRequest
from shared.indexable import MAX_FIELD_BYTES
from shared.principals.principal import Principal
from shared.search import SearchMode

MAX_QUERIES = 256


@dataclass(frozen=True, slots=True)
class AskedSearch:
    """``where``: the expression of its filters; ``who``: who asks."""

    queries: tuple[str, ...]
    k: int
    mode: SearchMode
    where: str
    who: Principal


def check_queries(queries: Sequence[str]) -> None:
    """
    Raises:
        InvalidRequest: there are too many or none, or one of them cannot be searched for.
    """
    if not 1 <= len(queries) <= MAX_QUERIES:
        raise InvalidRequest(f"queries: 1 to {MAX_QUERIES}, got {len(queries)}")
    for i, query in enumerate(queries):
        if not query.strip():
            raise InvalidRequest(f"queries[{i}]: is empty")
        if len(query.encode()) > MAX_FIELD_BYTES:
            raise InvalidRequest(f"queries[{i}]: longer than {MAX_FIELD_BYTES} bytes")
