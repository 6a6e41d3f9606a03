"""Watches what rows attend to in one layer, from queries and keys directly, and computes nothing behind that.

A backend of attention (``shared.engine.attention``) around another one: the layers in front are the other
one's, in that layer the rows' keys and values are appended, the attention of the rows is kept as weights
per token, and the pass ends: neither the layer's output nor its MLP is computed. Shapes: H query heads, K kv
heads, S rows of a lane, T tokens of a segment, D head_dim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor

from shared.engine.attention import Attention, Backend, Lane, StepPlan
from shared.engine.backends.piecewise import append
from shared.engine.model.model import LoadedModel
from shared.engine.model.rope import Rotation
from shared.engine.modes.attention_probe import context_weights


class _Enough(Exception):
    """The layer's attention is known; the rest of the pass is not wanted."""


class Watcher:
    """Of one pass. ``weights``, if wanted: per lane, and per placement in the order of its branch's
    ``context``, the mean attention [T] over the lane's rows and all heads, as float32. Rows stand behind
    everything in their context."""

    def __init__(self, backend: Backend, rotation: Rotation, watched: int, wanted: bool = True) -> None:
        self.weights: list[list[Tensor]] = []
        self._backend = backend
        self._rotation = rotation
        self._watched = watched
        self._wanted = wanted

    def plan(self, lanes: Sequence[Lane]) -> Watcher:
        self._lanes = lanes
        self._inner: Attention = self._backend.plan(lanes)
        return self

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        if layer != self._watched:
            return self._inner.run(layer, q_HRD, k_KRD, v_KRD, scale)
        angles = self._rotation.angles([int(place) for lane in self._lanes for place in lane.places()])
        append(self._lanes, layer, self._rotation.rotate(k_KRD, angles), v_KRD)
        if self._wanted:
            self.weights = [self._weights(lane, q_HRD[:, lane.rows], scale) for lane in self._lanes]
        raise _Enough

    def _weights(self, lane: Lane, q_HSD: Tensor, scale: float) -> list[Tensor]:
        weights_T = context_weights(lane.branch, lane.num_rows, self._watched, q_HSD, scale, self._rotation)
        return list(torch.split(weights_T, [p.num_tokens for p in lane.branch.context]))


def run_watched(model: LoadedModel, lanes: Sequence[Lane], watcher: Watcher) -> None:
    """One pass over the next pending tokens of the lanes' branches, which are computed afterwards. Segments
    have room for them."""
    with contextlib.suppress(_Enough):
        model.forward(StepPlan(lanes, watcher))
    for lane in lanes:
        lane.advance()
