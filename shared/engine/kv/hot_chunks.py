"""Names the chunks that an engine is asked for most, so that another one can load them before it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shared.identity import TokenIds


@dataclass(frozen=True, slots=True)
class HotChunk:
    """A chunk that is resident somewhere. ``tenant``: whose it is."""

    chunk_id: str
    token_ids: TokenIds
    tenant: str = ""


def within(chunks: Iterable[HotChunk], most_bytes: int, bytes_per_token: int) -> Iterator[HotChunk]:
    """Yields the first ones, as far as their KV fits."""
    for chunk in chunks:
        most_bytes -= len(chunk.token_ids) * bytes_per_token
        if most_bytes < 0:
            return
        yield chunk
