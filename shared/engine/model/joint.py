"""One product of the same rows with the weights of several layers, which are asked one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class JointProduct:
    """``product``: of rows with all the weights. ``widths``: each layer's outputs."""

    def __init__(self, product: Callable[[Tensor], Tensor], widths: Sequence[int]) -> None:
        self._product = product
        self._widths = list(widths)
        self._last: tuple[Tensor, Sequence[Tensor]] | None = None

    def of(self, nth: int, x: Tensor) -> Tensor:
        """With the weight of that layer. The first one that is asked of new rows computes for all."""
        last = self._last
        if last is None or last[0] is not x:
            last = self._last = x, torch.split(self._product(x), self._widths, -1)
        if nth == len(self._widths) - 1:
            self._last = None
        return last[1][nth]
