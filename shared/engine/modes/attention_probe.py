"""Measures how much the rows of a branch attend to each token of its context: what mode ``query_attention``
selects by, and what an auxiliary model scores by.

Weights are computed beside the step's attention, which gives none, from the same queries and the same placed
keys. Shapes: H query heads, K kv heads, S rows, T placed tokens, U own tokens, D head_dim.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shared.engine.kv.branch import Branch, Placement
from shared.engine.model.rope import Rotation


class AttentionProbe:
    """Of a branch without ancestors that stands behind its whole context. Grows with every layer of every
    pass over its rows."""

    def __init__(self, rotation: Rotation) -> None:
        self._rotation = rotation
        self._sums_T = torch.zeros(())
        self._num_rows = 0

    def look(self, branch: Branch, num_rows: int, layer: int, q_HSD: Tensor, scale: float) -> None:
        """See ``Probe.look``."""
        weights_T = context_weights(branch, num_rows, layer, q_HSD, scale, self._rotation)
        self._sums_T = self._sums_T + num_rows * weights_T
        self._num_rows += num_rows

    def weights(self, num_tokens: int) -> list[float]:
        """Mean weight of each of the last ``num_tokens`` placed tokens, over layers, heads and rows."""
        return (self._sums_T[-num_tokens:] / self._num_rows).tolist()


def context_weights(
    branch: Branch, num_rows: int, layer: int, q_HSD: Tensor, scale: float, rotation: Rotation
) -> Tensor:
    """Mean attention [T] over the branch's next rows and all heads to all that is placed in its context; for
    the rest see ``Probe.look``. The softmax of a row goes over all that it sees: the context, which it stands
    behind, and its branch up to itself."""
    segment, length = branch.segment, branch.segment.length
    end = length + num_rows
    position_S = branch.offset + torch.as_tensor(np.asarray(segment.places(length, end)))
    num_placed, num_kv_heads = sum(p.num_tokens for p in branch.context), len(segment.k_LKTD[layer])
    group = len(q_HSD) // num_kv_heads
    own = Placement(segment, branch.offset, end)
    parts = [
        (rotation.rotate(q_HSD.float() * scale, rotation.angles(position_S - p.offset)), p)
        for p in (*branch.context, own)
    ]
    ahead_SU = torch.ones(num_rows, end, dtype=torch.bool, device=q_HSD.device).triu(length + 1)
    sums_T = torch.zeros(num_placed, device=q_HSD.device)
    for kv_head in range(num_kv_heads):
        heads = slice(kv_head * group, (kv_head + 1) * group)
        scores = [q[heads] @ p.segment.k_LKTD[layer][kv_head, : p.num_tokens].float().T for q, p in parts]
        scores[-1].masked_fill_(ahead_SU, float("-inf"))
        sums_T += torch.cat(scores, -1).softmax(-1)[..., :num_placed].sum((0, 1))
    return sums_T / (len(q_HSD) * num_rows)
