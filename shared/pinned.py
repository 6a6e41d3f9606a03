"""Names the chunks that stay in the nodes' tiers, as the KV store tells it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PinnedDocuments:
    """``document_id`` empty: the whole collection."""

    collection: str
    document_id: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PinnedChunks:
    """``version`` is equal for equal sets; a set whose version the asker knew comes without its ids."""

    version: str
    chunk_ids: frozenset[str] = frozenset()
