"""APE: attention to chunks that were encoded side by side, with a temperature of its own and its weight
scaled.

For a row, c over all chunks together and o over the rest (prefix, private tokens), with Z_c = Σ exp(q·k /
(T·√d)), Z_o at T = 1::

    out = (Z_c^(S·T) · out_c + Z_o · out_o) / (Z_c^(S·T) + Z_o)

T = S = 1 is ordinary attention. Rows of such branches are computed here, in plain float32 products, on any
device; the others of the step stay with the backend. Shapes: H query heads, K kv heads, R rows, S rows of one
branch, T tokens, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from shared.engine.attention import Attention, Backend, Lane
from shared.engine.backends.piecewise import append
from shared.engine.kv.segment import Placement, Tempering
from shared.engine.model.rope import Rotation


@dataclass(frozen=True, slots=True)
class TemperingBackend:
    """``backend`` for all branches without a ``tempering``."""

    backend: Backend
    rotation: Rotation
    device: torch.device

    def plan(self, lanes: Sequence[Lane]) -> Attention:
        if all(lane.branch.tempering is None for lane in lanes):
            return self.backend.plan(lanes)
        return TemperedAttention(lanes, self.backend, self.rotation, self.device)


class TemperedAttention:
    def __init__(
        self, lanes: Sequence[Lane], backend: Backend, rotation: Rotation, device: torch.device
    ) -> None:
        self._rotation = rotation
        self._device = device
        self._tempered = [
            (lane, lane.branch.tempering) for lane in lanes if lane.branch.tempering is not None
        ]
        plain = [lane for lane in lanes if lane.branch.tempering is None]
        rows = [row for lane in plain for row in range(lane.rows.start, lane.rows.stop)]
        self._plain_rows = torch.tensor(rows, dtype=torch.long, device=device)
        self._plain = backend.plan(_side_by_side(plain)) if plain else None

    def run(
        self, layer: int, q_HRD: torch.Tensor, k_KRD: torch.Tensor, v_KRD: torch.Tensor, scale: float
    ) -> torch.Tensor:
        out_HRD = torch.empty_like(q_HRD)
        if self._plain is not None:
            rows = self._plain_rows
            out_HRD[:, rows] = self._plain.run(layer, q_HRD[:, rows], k_KRD[:, rows], v_KRD[:, rows], scale)
        for lane, tempering in self._tempered:
            angles = self._rotation.angles(np.asarray(lane.places()).tolist())
            alone = Lane(lane.branch, 0, lane.num_rows)
            append([alone], layer, self._rotation.rotate(k_KRD[:, lane.rows], angles), v_KRD[:, lane.rows])
            out_HRD[:, lane.rows] = self._attend(lane, tempering, layer, q_HRD[:, lane.rows], scale).to(
                q_HRD.dtype
            )
        return out_HRD

    def _attend(
        self, lane: Lane, tempering: Tempering, layer: int, q_HSD: torch.Tensor, scale: float
    ) -> torch.Tensor:
        branch = lane.branch
        own = Placement(branch.segment, branch.offset, branch.segment.length + lane.num_rows)
        begin, end = tempering.first_chunk, tempering.first_chunk + tempering.num_chunks
        seen = branch.seen()
        chunks, rest = seen[begin:end], [*seen[:begin], *seen[end:], own]
        rest_HSD, rest_HS = self._softmax(lane, layer, q_HSD, rest, scale)
        chunks_HSD, chunks_HS = self._softmax(lane, layer, q_HSD, chunks, scale / tempering.temperature)
        more_HS = tempering.scale * tempering.temperature * chunks_HS - rest_HS
        return torch.lerp(rest_HSD, chunks_HSD, more_HS.sigmoid()[..., None])

    def _softmax(
        self, lane: Lane, layer: int, q_HSD: torch.Tensor, placements: Sequence[Placement], scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output [H, S, D] and its log-sum-exp [H, S] over these placements together, which stand in front of
        all rows but for the last tokens of their own segment."""
        position_S = lane.branch.offset + torch.as_tensor(np.asarray(lane.places()), device=self._device)
        scores, values = [], []
        for placement in placements:
            segment, length = placement.segment, placement.num_tokens
            k_KTD, v_KTD = (x[layer][:, :length].float() for x in (segment.k_LKTD, segment.v_LKTD))
            q_HSD_turned = self._rotation.rotate(
                q_HSD, self._rotation.angles(position_S - placement.offset)
            ).float()
            q_KGD = q_HSD_turned.reshape(len(k_KTD), -1, q_HSD.shape[2])
            scores_HST = (q_KGD @ k_KTD.transpose(1, 2) * scale).reshape(*q_HSD.shape[:2], length)
            if segment is lane.branch.segment:
                ahead_ST = torch.ones(scores_HST.shape[1:], dtype=torch.bool, device=self._device).triu(
                    segment.length + 1
                )
                scores_HST = scores_HST.masked_fill(ahead_ST, float("-inf"))
            scores.append(scores_HST)
            values.append(v_KTD)
        scores_HSU, v_KUD = torch.cat(scores, -1), torch.cat(values, 1)
        weights_KGU = scores_HSU.softmax(-1).reshape(len(v_KUD), -1, v_KUD.shape[1])
        return (weights_KGU @ v_KUD).reshape(q_HSD.shape), scores_HSU.logsumexp(-1)


def _side_by_side(lanes: Sequence[Lane]) -> list[Lane]:
    """Their rows without those of others between them."""
    packed: list[Lane] = []
    for lane in lanes:
        packed.append(Lane(lane.branch, sum(one.num_rows for one in packed), lane.num_rows))
    return packed
