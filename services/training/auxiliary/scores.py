"""Scores tokens of contexts by what questions attend to in a model's last layer, with gradients: what the
selector serves (``shared.selection.scoring``, all chunks stitched), over chunks that are computed in the same
pass.

Shapes: G requests, S rows of a request and T keys of it (both padded), R rows of the step, H query heads, K
kv heads, D head_dim, N tokens of a request's chunks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from services.training.sight import Sight, SightGroup
from services.training.twin import IN_CONTEXT, TwinStep
from services.training.twin_request import TwinRequest
from shared.engine.model.model import LoadedModel


def attended(model: LoadedModel, requests: Sequence[TwinRequest]) -> list[list[Tensor]]:
    """Of every branch of every request, the mean attention [N] of its rows and all heads in the last layer to
    the tokens of the request's chunks, in order."""
    step = _WatchedStep(model, requests)
    with contextlib.suppress(_Enough):
        model.forward(step)
    return step.scores()


class _Enough(Exception):
    """The last layer's attention is known; the rest of the pass is not wanted."""


class _WatchedStep(TwinStep):
    def __init__(self, model: LoadedModel, requests: Sequence[TwinRequest]) -> None:
        super().__init__(requests, model.spec)
        self._requests, self._last = requests, model.spec.num_layers - 1
        self._watch = Sight(self.private_groups, model.spec.rotation(), first=0)
        self._weights_GST = torch.empty(0)

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        if layer < self._last:
            return super().run(layer, q_HRD, k_KRD, v_KRD, scale)
        self._weights_GST = self._watch.weights(self.placed(q_HRD), k_KRD.transpose(0, 1), scale)
        raise _Enough

    def scores(self) -> list[list[Tensor]]:
        weights = zip(self._requests, self.private_groups, self._weights_GST, strict=True)
        return [_of_branches(*of_one) for of_one in weights]


def _of_branches(request: TwinRequest, group: SightGroup, weights_ST: Tensor) -> list[Tensor]:
    keys = group.keys
    chunks_N = np.isin(keys.part, IN_CONTEXT) & (keys.position >= len(request.prefix_ids))
    weights_SN = weights_ST[:, torch.from_numpy(np.flatnonzero(chunks_N)).to(weights_ST.device)]
    lens = [len(request.private), *map(len, request.branches)]
    return [of_branch.mean(0) for of_branch in weights_SN[: sum(lens)].split(lens)[1:]]
