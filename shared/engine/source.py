"""Where stored KV comes from and where computed KV goes: the engine's only view of the outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch


class StoredSegment(Protocol):
    """KV of one chunk, readable layer by layer, by several threads at once. Closed by the engine."""

    def read_layer(self, layer: int, k_out_HTD: torch.Tensor, v_out_HTD: torch.Tensor) -> None:
        """Fills both tensors ([kv_heads, tokens, head_dim], contiguous, the model's dtype) with verified bytes.

        Keys come out rotated at local positions 0, 1, 2, …

        Raises:
            CorruptData: the bytes are not what was stored. The engine then recomputes the chunk and calls ``save``.
        """
        ...

    def close(self) -> None: ...


class SegmentSource(Protocol):
    """Called from the engine's loader threads; every method may block. No method but ``save`` raises for a chunk's sake: a chunk
    that cannot be had is absent."""

    def open(self, chunk_lens: Mapping[str, int]) -> Mapping[str, StoredSegment]:
        """The stored ones of these chunks (id → number of tokens). Absent, foreign and unreadable ones are left out."""
        ...

    def prefetch(self, chunk_ids: Sequence[str]) -> None:
        """These will be opened soon: brings them nearer, if it can. Need not wait for that."""
        ...

    def save(
        self,
        chunk_id: str,
        prefix_ids: Sequence[int],
        token_ids: Sequence[int],
        k_LHTD: Sequence[torch.Tensor],
        v_LHTD: Sequence[torch.Tensor],
        replace: bool,
    ) -> None:
        """Makes KV computed behind ``prefix_ids`` durable: returns once it is. ``replace``: what is stored now was found broken.

        Raises:
            KvquiltError: it could not be stored (``StorageFull``, ``Unavailable``, …).
        """
        ...


class NoSource:
    """Stores nothing, has nothing: the engine as a plain library."""

    def open(self, chunk_lens: Mapping[str, int]) -> Mapping[str, StoredSegment]:
        return {}

    def prefetch(self, chunk_ids: Sequence[str]) -> None:
        pass

    def save(
        self,
        chunk_id: str,
        prefix_ids: Sequence[int],
        token_ids: Sequence[int],
        k_LHTD: Sequence[torch.Tensor],
        v_LHTD: Sequence[torch.Tensor],
        replace: bool,
    ) -> None:
        pass
