"""CacheBlend: one pass over all tokens of a context in which rows drop out between layers.

Two layers compute all tokens. From then on a layer goes on with those of the one before whose fresh keys and
values differ most from the stored ones, gradually fewer; of all others the stored ones are seen. Shapes: K kv
heads, R rows, N tokens of the context, T tokens of a chunk, D head_dim, E hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shared.engine.attention import Backend, Lane, StepPlan
from shared.engine.device_arrays import integers
from shared.engine.kv.arrival import Patience
from shared.engine.kv.branch import Branch, Placement
from shared.engine.kv.segment import Segment
from shared.engine.model.adapting import AdapterWeights
from shared.engine.model.model import LoadedModel
from shared.engine.model.rope import Rotation
from shared.engine.modes.token_selection import best, blend_counts


@dataclass(frozen=True, slots=True)
class Blend:
    """``tokens``: of the first layer that did not compute all; ``layers``: how many each layer computed;
    ``deviations``: of all tokens, by which ``tokens`` were chosen."""

    tokens: tuple[int, ...]
    layers: tuple[int, ...]
    deviations: tuple[float, ...]

    @property
    def num_tokens(self) -> int:
        """Computed, by their share of the layers. Halves are rounded up."""
        return (2 * sum(self.layers) + len(self.layers)) // (2 * len(self.layers))


@dataclass(frozen=True, slots=True)
class Blender:
    """``branch`` holds the context's tokens; ``placed`` are its chunks as they are stored; ``adapter``: what
    all that is computed goes with."""

    model: LoadedModel
    backend: Backend
    rotation: Rotation
    branch: Branch
    placed: Sequence[Placement]
    patience: Patience
    adapter: AdapterWeights | None = None

    def run(self, ratio: float | None) -> Blend:
        """Computes the whole of the branch.

        Raises:
            GivenUp: a layer of a chunk that is still arriving was not there in time. The branch is as it was.
        """
        branch, spec = self.branch, self.model.spec
        counts = blend_counts(ratio, len(branch.pending), spec.num_layers)
        first: list[tuple[int, ...]] = []
        deviations: tuple[float, ...] = ()
        rows = list(range(len(branch.pending)))
        rows_R = torch.arange(len(rows), device=spec.device)
        hidden_RE = self.model.embed(branch.pending)
        for layer, count in enumerate(counts):
            if count < len(rows):
                by_row = self._deviations(layer - 1, rows_R)  # where the host waits: it has to choose
                kept = best(by_row, count)
                kept_R = integers(kept, spec.device)
                rows, rows_R, hidden_RE = [rows[i] for i in kept], rows_R[kept_R], hidden_RE[kept_R]
                deviations = deviations or tuple(by_row)
                first = first or [tuple(rows)]
            self._exclude(layer, rows_R)
            for kv in (branch.segment.k_LKTD, branch.segment.v_LKTD):
                # what nobody sees weighs 0, and 0 times whatever was there before must be 0
                kv[layer].zero_()
            if rows:
                hidden_RE = self._layer(layer, rows, rows_R, hidden_RE)
        chosen = first[0] if first else tuple(range(len(branch.pending)))
        branch.segment.length = len(branch.pending)
        branch.pending.clear()
        return Blend(chosen, tuple(counts), deviations)

    def _layer(self, layer: int, rows: Sequence[int], rows_R: Tensor, hidden_RE: Tensor) -> Tensor:
        """As a branch that has these tokens alone; then its keys and values move to their places among
        all."""
        branch, spec = self.branch, self.model.spec
        view = Branch(spec, (), branch.offset, branch.context)
        view.segment = Segment(spec, len(rows), places=np.array([*rows, len(branch.pending)], np.int64))
        plan = StepPlan([Lane(view, 0, len(rows), self.adapter)], self.backend, self.patience)
        hidden_RE = self.model.run_layer(layer, hidden_RE, plan)
        branch.segment.k_LKTD[layer][:, rows_R] = view.segment.k_LKTD[layer]
        branch.segment.v_LKTD[layer][:, rows_R] = view.segment.v_LKTD[layer]
        return hidden_RE

    def _deviations(self, layer: int, rows_R: Tensor) -> list[float]:
        """Squared distance of fresh to stored keys and values of each row, over all heads."""
        segment = self.branch.segment
        fresh_k, fresh_v = (x[layer][:, rows_R].float() for x in (segment.k_LKTD, segment.v_LKTD))
        stored_k, stored_v = (
            torch.cat(parts, 1)[:, rows_R]
            for parts in zip(*(self._stored(p, layer) for p in self.placed), strict=True)
        )
        return ((fresh_k - stored_k).square() + (fresh_v - stored_v).square()).sum((0, 2)).tolist()

    def _stored(self, placement: Placement, layer: int) -> tuple[Tensor, Tensor]:
        """Keys, moved to their places, and values [K, T, D] of a chunk, in float32."""
        segment, num_tokens = placement.segment, placement.num_tokens
        k_KTD, v_KTD = (x[layer][:, :num_tokens].float() for x in (segment.k_LKTD, segment.v_LKTD))
        angles = self.rotation.angles([placement.offset - self.branch.offset])
        return self.rotation.rotate(k_KTD, angles), v_KTD

    def _exclude(self, layer: int, rows_R: Tensor) -> None:
        """Hides what is computed in a layer where it is stored, the rest among what is computed."""
        computed_N = torch.zeros(len(self.branch.pending), dtype=torch.bool, device=rows_R.device)
        computed_N[rows_R] = True
        assert self.branch.excluded is not None
        self.branch.excluded.set(layer, ~computed_N)
        for placement in self.placed:
            first = placement.offset - self.branch.offset
            assert placement.excluded is not None
            placement.excluded.set(layer, computed_N[first : first + placement.num_tokens])
