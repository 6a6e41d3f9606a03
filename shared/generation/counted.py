"""Counts tokens of a context by what became of its chunks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

RESIDENT, LOADED, COMPUTED = "resident", "loaded", "computed"


@dataclass(frozen=True, slots=True)
class ContextCounts:
    """Of a request whose mode uses what is stored.

    chunks: identity and number of tokens of each, in order.
    num_own: tokens of the prompt that are the request's own: they are computed whatever is stored, unless
    they are of earlier turns and kept.
    lost, late, fetched: identities; those whose KV was nowhere, those that were computed before they were
    loaded, those that were looked for in the store.
    selected: tokens of the context that are computed anew. num_blended: instead, of a mode that computes
    other tokens in every layer, so many in the mean layer.
    tiers: of fetched ones, the tier of the store that has them, where that is known.
    """

    chunks: tuple[tuple[str, int], ...]
    num_own: int
    lost: frozenset[str]
    late: frozenset[str]
    fetched: frozenset[str]
    selected: tuple[int, ...]
    num_blended: int | None = None
    tiers: Mapping[str, str] = field(default_factory=dict)

    def of(self, prompt_tokens: int) -> Mapping[str, Any]:
        """Those fields of ``Usage`` that follow from what became of the chunks."""
        computed, lens = self._tokens_of(self.lost | self.late), dict(self.chunks)
        if self.num_blended is None:
            recomputed = len(computed.union(self.selected))
        else:
            recomputed = min(sum(length for _, length in self.chunks), len(computed) + self.num_blended)
        recomputed += self.num_own
        return {
            "reused_tokens": prompt_tokens - recomputed,
            "recomputed_tokens": recomputed,
            "loaded_tokens": sum(lens[key] for key in self.fetched - self.lost - self.late),
            "written_tokens": len(self._tokens_of(self.lost)),
            "chunk_origins": tuple(self._origin(key) for key, _ in self.chunks),
        }

    def without(self, chunk_ids: Collection[str]) -> ContextCounts:
        """As if KV of these had been nowhere."""
        gone = frozenset(chunk_ids) & dict(self.chunks).keys()
        return replace(self, lost=self.lost | gone)

    def _origin(self, chunk_id: str) -> str:
        """See ``Usage.chunk_origins``."""
        if chunk_id in self.lost or chunk_id in self.late:
            return COMPUTED
        return self.tiers.get(chunk_id) or LOADED if chunk_id in self.fetched else RESIDENT

    def _tokens_of(self, chunk_ids: Collection[str]) -> set[int]:
        """Tokens of the context that are in these chunks; a chunk's where it stands first."""
        places: dict[str, range] = {}
        start = 0
        for chunk_id, length in self.chunks:
            places.setdefault(chunk_id, range(start, start + length))
            start += length
        return {token for chunk_id in chunk_ids for token in places[chunk_id]}
