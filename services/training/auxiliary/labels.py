"""Holds what computing windows of a context anew is worth to its questions.

Shapes: W windows, N pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.training.auxiliary.contexts import SelectionContext
from services.training.twin_request import Ids

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class SelectionLabels:
    """Of one question. ``answer``: the reference's; ``stored``, ``computed``: its log-probability if nothing
    and if everything is computed anew; ``gain_W``: of each window alone; ``pairs_N2``, ``pair_gain_N``: of
    two together; ``attended_W``: the primary's own mean attention, in its last layer, to the tokens of a
    window."""

    answer: Ids
    stored: float
    computed: float
    gain_W: Floats
    pairs_N2: NDArray[np.int64]
    pair_gain_N: Floats
    attended_W: Floats

    @property
    def worth_W(self) -> Floats:
        """The most that a window adds, alone or to another one; never below 0."""
        worth_W = np.maximum(self.gain_W, 0.0)
        for column in (0, 1):
            windows_N, others_N = self.pairs_N2[:, column], self.pairs_N2[:, 1 - column]
            added_N = self.pair_gain_N - np.maximum(self.gain_W[others_N], 0.0)
            np.maximum.at(worth_W, windows_N, added_N)
        return worth_W


@dataclass(frozen=True, slots=True, eq=False)
class LabelledContext:
    """``labels``: by question."""

    context: SelectionContext
    labels: tuple[SelectionLabels, ...]
