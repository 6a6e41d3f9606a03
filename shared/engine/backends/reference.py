"""The slow twin: for every branch one softmax over all that it sees, with the rule of sight written out as a
mask.

It knows nothing of pieces, stacks, splits or merging. Shapes: H query heads, K kv heads, R rows, S rows of
one branch, T tokens, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shared.engine.attention import Lane
from shared.engine.kv.branch import Placement
from shared.engine.kv.segment import Places
from shared.engine.model.rope import Rotation
from shared.engine.model.spec import ModelSpec


class ReferenceBackend:
    def __init__(self, spec: ModelSpec) -> None:
        self._rotation = spec.rotation()

    def plan(self, lanes: Sequence[Lane]) -> ReferenceAttention:
        return ReferenceAttention(lanes, self._rotation)


@dataclass(frozen=True, slots=True)
class ReferenceAttention:
    lanes: Sequence[Lane]
    rotation: Rotation

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        outs = [
            self._attend(lane, layer, q_HRD[:, lane.rows], k_KRD[:, lane.rows], v_KRD[:, lane.rows], scale)
            for lane in self.lanes
        ]
        return torch.cat(outs, dim=1).to(q_HRD.dtype)

    def _attend(
        self,
        lane: Lane,
        layer: int,
        q_HSD: Tensor,
        k_KSD: Tensor,
        v_KSD: Tensor,
        scale: float,
    ) -> Tensor:
        branch, old = lane.branch, lane.branch.segment.length
        position_S = branch.offset + self._tensor(lane.places())
        own = Placement(branch.segment, branch.offset, old + lane.num_rows)
        own_angles = self.rotation.angles(position_S - branch.offset)
        branch.segment.k_LKTD[layer][:, old : old + lane.num_rows] = self.rotation.rotate(k_KSD, own_angles)
        branch.segment.v_LKTD[layer][:, old : old + lane.num_rows] = v_KSD
        scores, values, tempering = [], [], branch.tempering
        for placement in (*branch.seen(), own):
            segment, length = placement.segment, placement.num_tokens
            group = q_HSD.shape[0] // k_KSD.shape[0]
            k_HTD = segment.k_LKTD[layer][:, :length].float().repeat_interleave(group, 0)
            values.append(segment.v_LKTD[layer][:, :length].float().repeat_interleave(group, 0))
            angles = self.rotation.angles((position_S - placement.offset).clamp_min(0))
            position_T = placement.offset + self._tensor(segment.places(0, length))
            seen_ST = position_T < position_S[:, None] + (placement is own)
            if placement.excluded is not None:
                seen_ST = seen_ST & ~placement.excluded.hidden(layer, 0, length)
            scores_HST = self.rotation.rotate(q_HSD, angles).float() @ k_HTD.transpose(1, 2) * scale
            scores.append(scores_HST.masked_fill(~seen_ST, float("-inf")))
        if tempering is None:
            return torch.cat(scores, -1).softmax(-1) @ torch.cat(values, 1)
        inside = [i for i in range(len(scores)) if i in tempering.chunks]
        rest = [i for i in range(len(scores)) if i not in tempering.chunks]
        rest_HSD, rest_HS = _softmax([scores[i] for i in rest], [values[i] for i in rest])
        hot_HSD, hot_HS = _softmax(
            [scores[i] / tempering.temperature for i in inside], [values[i] for i in inside]
        )
        more_HS = tempering.scale * tempering.temperature * hot_HS - rest_HS
        return torch.lerp(rest_HSD, hot_HSD, more_HS.sigmoid()[..., None])

    def _tensor(self, places: Places) -> Tensor:
        return torch.as_tensor(np.asarray(places), device=self.rotation.device)


def _softmax(scores: list[Tensor], values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Output [H, S, D] and its log-sum-exp [H, S]; 0 and −∞ for a row that sees nothing."""
    scores_HST = torch.cat(scores, -1)
    return scores_HST.softmax(-1).nan_to_num(0.0) @ torch.cat(values, 1), scores_HST.logsumexp(-1)
