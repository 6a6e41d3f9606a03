"""Adapters as stages of native layers: of each product, the two small ones whose result is added to its sums.

Several linear layers of the same rows that are one product get one pair of small ones: the A of all, one
behind the other, and their B on the diagonal. Products are those of ``rowwise``: a row's bits depend on no
other row, whatever adapter that goes with. Shapes: I inputs and O outputs of the product, r rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from shared.engine.model.linear_kernels import NativeStage
from shared.engine.model.lora import LowRank
from shared.engine.model.rowwise import RowwiseProduct, alternating


class AddedPlaces(NamedTuple):
    """Among a call's rows: of what A makes, and of what is added."""

    inner: int
    more: int


class NativeLowRank:
    """B·A of one product, in bfloat16."""

    def __init__(self, a_rI: Tensor, b_Or: Tensor) -> None:
        odd = len(a_rI) % 2  # the kernels take inputs two by two
        self._a = RowwiseProduct(pad(a_rI, (0, 0, 0, odd)).bfloat16())
        self._b = RowwiseProduct(pad(b_Or, (0, odd)).bfloat16())

    @property
    def rank(self) -> int:
        """Outputs of A."""
        return self._a.num_out

    @property
    def num_sums(self) -> int:
        """Outputs of B, those of the product's whole units."""
        return self._b.num_out

    def stages(self, x: int, places: AddedPlaces, adapter: int) -> tuple[NativeStage, NativeStage]:
        """``adapter``: its number in the call."""
        both = self._a.stage(x, places.inner), self._b.stage(places.inner, places.more)
        for stage in both:
            stage.adapter = adapter
        return both


class AdaptedProduct(NamedTuple):
    """A product of a layer: the linear layers that it is, by path, the outputs of each, and those of the
    product's whole units. ``gated``: two whose outputs alternate."""

    paths: Sequence[str]
    widths: Sequence[int]
    num_sums: int
    gated: bool = False

    def low_rank(self, by_path: Mapping[str, LowRank]) -> NativeLowRank | None:
        """None: the adapter does not change it."""
        changed = [by_path[path] for path in self.paths if path in by_path]
        if not changed:
            return None
        whole = torch.zeros(sum(self.widths), sum(one.b_Or.shape[1] for one in changed))
        row = column = 0
        for path, width in zip(self.paths, self.widths, strict=True):
            if path in by_path:
                b_Or = by_path[path].b_Or
                whole[row : row + width, column : column + b_Or.shape[1]] = b_Or
                column += b_Or.shape[1]
            row += width
        b_Or = alternating(*whole.chunk(2)) if self.gated else whole
        more_out = (0, 0, 0, self.num_sums - len(b_Or))
        return NativeLowRank(torch.cat([one.a_rI for one in changed]), pad(b_Or, more_out))


def with_adapters(
    product: NativeStage, changed: Sequence[NativeLowRank | None], places: AddedPlaces
) -> list[NativeStage]:
    """The product, behind what adapters (the first has number 1) add to it."""
    stages: list[NativeStage] = []
    for adapter, one in enumerate(changed, 1):
        if one is not None:
            stages += one.stages(product.x, places, adapter)
            product.adapters |= 1 << adapter
    product.more = places.more
    return [*stages, product]
