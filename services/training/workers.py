"""Declares what the training loop needs of those that train together, and the one that trains alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Workers(Protocol):
    """Processes that hold equal weights. Each computes every ``count``-th context of an update, from its
    ``rank`` on; rank 0 tells and writes."""

    @property
    def rank(self) -> int: ...

    @property
    def count(self) -> int: ...

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replaces tensors by their sums over all workers, added in an order that is always the same. All
        call it, with tensors of equal shapes."""
        ...

    def wait_for_all(self) -> None:
        """Returns when all have called it."""
        ...


class Alone:
    rank, count = 0, 1

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        pass

    def wait_for_all(self) -> None:
        pass
