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
        self._x: Tensor | None = None
        self._products: Sequence[Tensor] = ()

    def of(self, nth: int, x: Tensor) -> Tensor:
        """With the weight of that layer. The first one that is asked of new rows computes for all."""
        if x is not self._x:
            self._x, self._products = x, torch.split(self._product(x), self._widths, -1)
        product = self._products[nth]
        if nth == len(self._widths) - 1:
            self._x, self._products = None, ()
        return product
