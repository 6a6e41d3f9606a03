"""Scores tokens of contexts by what questions attend to in a model's last layer, with gradients: what the
selector serves (``shared.selection.scoring``, all chunks stitched), over chunks that are computed in the same
pass.

Shapes: G requests, S rows of a request and T keys of it (both padded), R rows of the step, H query heads, K
kv heads, D head_dim, B branches and N tokens of a request's chunks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from services.training.sight import Ints, SightGroup, angles_of, on_device, rotated
from services.training.twin import IN_CONTEXT, TwinStep
from services.training.twin_request import TwinRequest
from shared.engine.model.model import LoadedModel


def attended(model: LoadedModel, requests: Sequence[TwinRequest]) -> list[Tensor]:
    """By request, the mean attention [B, N] of each branch's rows and all heads in the last layer to the
    tokens of the request's chunks, in order."""
    step = _WatchedStep(model, requests)
    with contextlib.suppress(_AttentionKnown):
        model.forward(step)
    return step.scores()


class _AttentionKnown(Exception):
    """The last layer's attention is known; the rest of the pass is not wanted."""


class _WatchedStep(TwinStep):
    def __init__(self, model: LoadedModel, requests: Sequence[TwinRequest]) -> None:
        super().__init__(requests, model.spec)
        self._requests, self._last = requests, model.spec.num_layers - 1
        groups, rotation = self.private_groups, model.spec.rotation()
        num_rows, num_keys = (max(map(len, x)) for x in ([g.rows for g in groups], [g.keys for g in groups]))
        hidden_GST = np.zeros((len(groups), num_rows, num_keys), dtype=np.bool_)
        for hidden_ST, group in zip(hidden_GST, groups, strict=True):
            hidden_ST[: len(group.rows)] = True  # but rows of padding see everything
            hidden_ST[: len(group.rows), : len(group.keys)] = ~group.seen_ST()
        self._hidden_GST = on_device(hidden_GST, rotation.device)
        self._rows_GS = on_device(_padded([g.rows.key for g in groups], num_rows), rotation.device)
        self._keys_GT = on_device(_padded([g.keys.key for g in groups], num_keys), rotation.device)
        self._turns = angles_of(_padded([g.keys.turn for g in groups], num_keys).flatten(), rotation)
        self._weights_GST = torch.empty(0)

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        if layer < self._last:
            return super().run(layer, q_HRD, k_KRD, v_KRD, scale)
        q_RHD, k_RKD = rotated(q_HRD.transpose(0, 1), self._angles), k_KRD.transpose(0, 1)
        k_GTKD = rotated(k_RKD[self._keys_GT.flatten()], self._turns).view(
            *self._keys_GT.shape, *k_RKD.shape[1:]
        )
        k_GTHD = k_GTKD.repeat_interleave(len(q_HRD) // len(k_KRD), 2).float()
        scores_GHST = scale * torch.einsum("gshd,gthd->ghst", q_RHD[self._rows_GS].float(), k_GTHD)
        hidden_G1ST = self._hidden_GST[:, None]
        self._weights_GST = scores_GHST.masked_fill(hidden_G1ST, float("-inf")).softmax(-1).mean(1)
        raise _AttentionKnown

    def scores(self) -> list[Tensor]:
        weights = zip(self._requests, self.private_groups, self._weights_GST, strict=True)
        return [_of_branches(*of_one) for of_one in weights]


def _of_branches(request: TwinRequest, group: SightGroup, weights_ST: Tensor) -> Tensor:
    keys, lens_B = group.keys, np.array(list(map(len, request.branches)))
    chunks_N = np.isin(keys.part, IN_CONTEXT) & (keys.position >= len(request.prefix_ids))
    mean_BS = np.zeros((len(lens_B), len(weights_ST)))
    of_branches = np.repeat(np.eye(len(lens_B)) / lens_B, lens_B, axis=0).T
    mean_BS[:, len(request.private) : len(request.private) + len(of_branches.T)] = of_branches
    weights_SN = weights_ST[:, on_device(np.flatnonzero(chunks_N), weights_ST.device)]
    return torch.from_numpy(mean_BS).to(weights_SN) @ weights_SN


def _padded(rows: Sequence[Ints], length: int) -> Ints:
    return np.stack([np.pad(row, (0, length - len(row))) for row in rows])
