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

from shared.engine.attention import Backend, Lane, StepPlan
from shared.engine.kv.arrival import Patience
from shared.engine.kv.segment import Branch, Placement, Segment
from shared.engine.model.model import LoadedModel
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


class Blender:
    def __init__(self, model: LoadedModel, backend: Backend) -> None:
        self._model = model
        self._backend = backend
        self._rotation = model.spec.rotation()

    def run(
        self, branch: Branch, placed: Sequence[Placement], ratio: float | None, patience: Patience
    ) -> Blend:
        """Computes the whole of ``branch``, which holds the context's tokens; ``placed`` are its chunks as
        they are stored.

        Raises:
            GivenUp: a layer of a chunk that is still arriving was not there in time. The branch is as it was.
        """
        spec, num_tokens = self._model.spec, len(branch.pending)
        counts = blend_counts(ratio, num_tokens, spec.num_layers)
        first: list[tuple[int, ...]] = []
        deviations: tuple[float, ...] = ()
        rows_R = torch.arange(num_tokens, device=spec.device)
        hidden_RE = self._model.embed(torch.tensor(branch.pending, device=spec.device))
        cos_sin = self._model.unrotated(hidden_RE)
        for layer, count in enumerate(counts):
            if count < len(rows_R):
                by_row = self._deviations(branch, placed, layer - 1, rows_R)
                kept = torch.tensor(best(by_row, count), dtype=torch.long, device=spec.device)
                rows_R, hidden_RE = rows_R[kept], hidden_RE[kept]
                deviations = deviations or tuple(by_row)
                first = first or [tuple(rows_R.tolist())]
            _exclude(branch, placed, layer, rows_R, num_tokens)
            for kv in (branch.segment.k_LKTD, branch.segment.v_LKTD):
                kv[
                    layer
                ].zero_()  # what nobody sees weighs 0, and 0 times whatever was there before must be 0
            if len(rows_R):
                hidden_RE = self._layer(branch, layer, rows_R, hidden_RE, cos_sin, patience)
        branch.segment.length = num_tokens
        branch.pending.clear()
        return Blend(first[0] if first else tuple(range(num_tokens)), tuple(counts), deviations)

    def _layer(
        self,
        branch: Branch,
        layer: int,
        rows_R: torch.Tensor,
        hidden_RE: torch.Tensor,
        cos_sin: tuple[torch.Tensor, torch.Tensor],
        patience: Patience,
    ) -> torch.Tensor:
        """As a branch that has these tokens alone; then its keys and values move to their places among
        all."""
        spec, num_tokens = self._model.spec, len(branch.pending)
        view = Branch(spec, (), branch.offset, branch.context)
        places = np.append(rows_R.cpu().numpy(), num_tokens)
        view.segment = Segment(spec, len(rows_R), places=places)
        plan = StepPlan([Lane(view, 0, len(rows_R))], self._backend, patience)
        hidden_RE = self._model.run_layer(layer, hidden_RE, cos_sin, plan)
        for to_KTD, from_KTD in (
            (branch.segment.k_LKTD, view.segment.k_LKTD),
            (branch.segment.v_LKTD, view.segment.v_LKTD),
        ):
            to_KTD[layer][:, rows_R] = from_KTD[layer]
        return hidden_RE

    def _deviations(
        self, branch: Branch, placed: Sequence[Placement], layer: int, rows_R: torch.Tensor
    ) -> list[float]:
        """Squared distance of fresh to stored keys and values of each row, over all heads."""
        fresh_k, fresh_v = (
            x[layer][:, rows_R].float() for x in (branch.segment.k_LKTD, branch.segment.v_LKTD)
        )
        stored_k, stored_v = (
            torch.cat(parts, 1)[:, rows_R]
            for parts in zip(
                *(self._stored(placement, branch.offset, layer) for placement in placed), strict=True
            )
        )
        return ((fresh_k - stored_k).square() + (fresh_v - stored_v).square()).sum((0, 2)).tolist()

    def _stored(self, placement: Placement, origin: int, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys, moved to their places, and values [K, T, D] of a chunk, in float32."""
        segment, num_tokens = placement.segment, placement.num_tokens
        k_KTD, v_KTD = (x[layer][:, :num_tokens].float() for x in (segment.k_LKTD, segment.v_LKTD))
        angles = self._rotation.angles([placement.offset - origin])
        return self._rotation.rotate(k_KTD, angles), v_KTD


def _exclude(
    branch: Branch, placed: Sequence[Placement], layer: int, rows_R: torch.Tensor, num_tokens: int
) -> None:
    """Hides what is computed in a layer where it is stored, the rest not among what is computed."""
    computed_N = torch.zeros(num_tokens, dtype=torch.bool, device=rows_R.device)
    computed_N[rows_R] = True
    assert branch.excluded is not None
    branch.excluded.set(layer, ~computed_N)
    for placement in placed:
        first = placement.offset - branch.offset
        assert placement.excluded is not None
        placement.excluded.set(layer, computed_N[first : first + placement.num_tokens])
