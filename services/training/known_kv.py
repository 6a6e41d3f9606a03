"""Keys and values as they are stored, computed once so that training need not compute them again.

Shapes: R rows, K kv heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from services.training.sight import angles_of, rotated
from services.training.twin import TwinStep
from services.training.twin_request import Ids, PlacedChunk, SegmentKv, TwinRequest
from shared.engine.model.model import LoadedModel
from shared.engine.model.spec import ModelSpec


@torch.no_grad()
def segments_of(
    model: LoadedModel, prefix_ids: Ids, chunks: Sequence[PlacedChunk]
) -> tuple[SegmentKv | None, list[SegmentKv]]:
    """Keys and values of the prefix and of chunks as they are stored, by one pass."""
    if not prefix_ids and not chunks:
        return None, []
    step = _Keeping([TwinRequest(prefix_ids, tuple(chunks), ())], model.spec)
    model.forward(step)
    (rows,) = step.rows
    return (step.segment(rows.prefix) if prefix_ids else None), [step.segment(one) for one in rows.chunks]


class _Keeping(TwinStep):
    """Keeps what it computes."""

    def __init__(self, requests: Sequence[TwinRequest], spec: ModelSpec) -> None:
        super().__init__(requests, spec)
        self._rotation = spec.rotation()
        self._kept: list[tuple[Tensor, Tensor]] = []

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        self._kept.append((k_KRD.transpose(0, 1), v_KRD.transpose(0, 1)))
        return super().run(layer, q_HRD, k_KRD, v_KRD, scale)

    def segment(self, rows: range) -> SegmentKv:
        """Of consecutive rows."""
        part, angles = slice(rows.start, rows.stop), angles_of(np.arange(len(rows)), self._rotation)
        k_LTKD = torch.stack([k_RKD[part] for k_RKD, _ in self._kept])
        return SegmentKv(rotated(k_LTKD, angles), torch.stack([v_RKD[part] for _, v_RKD in self._kept]))
