"""The facts of a model that the engine goes by."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shared.engine.model.rope import RopeSpec, Rotation
from shared.packets import PacketIds


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """``sliding_window``: positions, or None. ``eos_ids`` end a branch. ``packets``: between which chunks
    stand, or None."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    sliding_window: int | None
    eos_ids: frozenset[int]
    dtype: torch.dtype
    device: torch.device
    rope: RopeSpec
    packets: PacketIds | None = None

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    def rotation(self) -> Rotation:
        """A new one, with tables of its own."""
        return Rotation(self.rope, self.device)

    @property
    def sight(self) -> int:
        """Most positions of one request: all that the model has, or its sliding window."""
        return min(self.max_positions, self.sliding_window or self.max_positions)

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")
