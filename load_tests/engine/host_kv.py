"""Gives stored KV out of host memory, for benchmarks: random, since time does not depend on what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from shared.engine.kv.segment import copy_layers
from shared.engine.kv.source import NoSource, StoredSegment
from shared.measuring.shapes import Shape


class HostKv(NoSource):
    """Has every chunk: the same numbers for all. Pinned for a GPU."""

    def __init__(self, shape: Shape, chunk_len: int, device: str = "cpu") -> None:
        kv = torch.randn(2 * shape.layers, shape.kv_heads, chunk_len, shape.head_dim).bfloat16()
        self._kv = kv if device == "cpu" else kv.pin_memory()

    def open(
        self, chunk_lens: Mapping[str, int], encoding: str = "", traceparent: str = "", tenant: str = ""
    ) -> Mapping[str, StoredSegment]:
        return dict.fromkeys(chunk_lens, _HostSegment(self._kv))


class _HostSegment:
    in_order = False
    tier = "memory"
    encoding = "exact"

    def __init__(self, kv: torch.Tensor) -> None:
        self._kv_2LKTD = kv

    def when_begun(self, tell: Callable[[], None]) -> None:
        tell()

    def read_layers(
        self, layers: range, k_out_LKTD: Sequence[torch.Tensor], v_out_LKTD: Sequence[torch.Tensor]
    ) -> None:
        kv_2LKTD = self._kv_2LKTD[2 * layers.start : 2 * layers.stop, :, : k_out_LKTD[0].shape[1]]
        copy_layers(kv_2LKTD, k_out_LKTD, v_out_LKTD)

    def close(self) -> None:
        pass
