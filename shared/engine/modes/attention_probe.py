"""How much the rows of a branch attend to each token of its context: what mode ``query_attention`` selects
by.

Weights are computed beside the step's attention, which gives none, from the same queries and the same placed
keys. Shapes: H query heads, K kv heads, G heads of a group, S rows, T tokens, D head_dim.
"""

from __future__ import annotations

import numpy as np
import torch

from shared.engine.kv.segment import Branch, Segment
from shared.engine.model.rope import Rotation


class AttentionProbe:
    """Of a branch without ancestors that stands behind its whole context. Grows with every layer of every
    pass over its rows."""

    def __init__(self, rotation: Rotation) -> None:
        self._rotation = rotation
        self._sums_T: torch.Tensor | None = None
        self._num_softmaxes = 0

    def look(self, branch: Branch, num_rows: int, layer: int, q_HSD: torch.Tensor, scale: float) -> None:
        """See ``Probe.look``."""
        own_len = branch.segment.length + num_rows
        positions_S = branch.offset + torch.as_tensor(
            np.asarray(branch.segment.places(branch.segment.length, own_len))
        )
        seen = [(p.segment, p.offset, p.num_tokens) for p in branch.context]
        parts = [
            (_rotated(self._rotation, q_HSD, positions_S - offset), segment, length)
            for segment, offset, length in (*seen, (branch.segment, branch.offset, own_len))
        ]
        num_placed = sum(length for _, _, length in seen)
        ahead_SU = torch.ones(num_rows, own_len, dtype=torch.bool, device=q_HSD.device).triu(
            branch.segment.length + 1
        )
        sums_T = torch.zeros(num_placed, device=q_HSD.device)
        group = q_HSD.shape[0] // branch.segment.k_LKTD[layer].shape[0]
        for kv_head in range(q_HSD.shape[0] // group):
            heads = slice(kv_head * group, (kv_head + 1) * group)
            scores = [
                q[heads].float() @ _keys(segment, layer, kv_head, length).T for q, segment, length in parts
            ]
            scores[-1] = scores[-1].masked_fill(ahead_SU, float("-inf"))
            sums_T += (torch.cat(scores, -1) * scale).softmax(-1)[..., :num_placed].sum((0, 1))
        self._sums_T = sums_T if self._sums_T is None else self._sums_T + sums_T
        self._num_softmaxes += q_HSD.shape[0] * num_rows

    def weights(self, num_tokens: int) -> list[float]:
        """Mean weight of each of the last ``num_tokens`` placed tokens, over layers, heads and rows."""
        assert self._sums_T is not None
        return (self._sums_T[-num_tokens:] / self._num_softmaxes).tolist()


def _rotated(rotation: Rotation, q_HSD: torch.Tensor, distances_S: torch.Tensor) -> torch.Tensor:
    return rotation.rotate(q_HSD, rotation.angles(distances_S))


def _keys(segment: Segment, layer: int, kv_head: int, length: int) -> torch.Tensor:
    return segment.k_LKTD[layer][kv_head, :length].float()
