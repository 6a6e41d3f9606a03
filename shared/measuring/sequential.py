"""Tells, while paired comparisons still come in, whether one way of answering is worse than another by less
than a margin, or by more; looking at any time, and stopping by what is seen, keeps the chance of error.

A comparison is a number from -1 to 1, ours minus the reference, of one unit (a question, or a context with
all its questions), in an order fixed beforehand. Against "on average it is worse by the margin or more" a
bet is laid on every unit, by what was seen before it; if the hypothesis holds, the wealth is a non-negative
supermartingale, and the chance that it *ever* reaches 1 / alpha is at most alpha (Ville, 1939). The bets
are approximate GRAPA (Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting,
JRSS B 2024, arXiv 2010.09686, section 4 and appendix B), which grow fastest where answers differ seldom, as
they do here.

Shapes: N units.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_MOST = 0.75
"""Of the bet that a single loss of 1 would ruin."""
_PRIOR_VARIANCE = 0.25
_LEAST_ROOM = 0.01
_STEPS = 24


def log_threshold(alpha: float) -> float:
    """Of a logarithm of wealth: above it the hypothesis is rejected at ``alpha``."""
    return -math.log(alpha)


def worse_by_less(differences_N: Floats, margin: float) -> Floats:
    """Logarithm of the wealth of a bet against "worse by ``margin`` or more", after each unit."""
    return _log_wealth(differences_N, margin)


def worse_by_more(differences_N: Floats, margin: float) -> Floats:
    """The same against "worse by ``margin`` at most"."""
    return _log_wealth(-differences_N, -margin)


def worse_at_most(differences_N: Floats, alpha: float) -> float:
    """The least margin that the units show at ``alpha``, as they stand now; 1 if they show nothing."""
    if not len(differences_N):
        return 1.0
    low, high = -1.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        shown = worse_by_less(differences_N, middle)[-1] >= log_threshold(alpha)
        low, high = (low, middle) if shown else (middle, high)
    return high


def _log_wealth(differences_N: Floats, margin: float) -> Floats:
    """Bets that ``differences_N + margin`` is above 0 on average."""
    before_N = np.arange(len(differences_N)) + 1.0  # units in front of each, and the prior
    sums_N = np.concatenate([[0.0], np.cumsum(differences_N)])[:-1]
    squares_N = np.concatenate([[0.0], np.cumsum(differences_N**2)])[:-1]
    mean_N = sums_N / before_N
    variance_N = np.maximum((_PRIOR_VARIANCE + squares_N) / before_N - mean_N**2, 0.0)
    edge_N = mean_N + margin
    scale_N = np.maximum(variance_N + edge_N**2, 1e-12)
    most = _MOST / max(1.0 - margin, _LEAST_ROOM)
    bet_N = np.clip(edge_N / scale_N, 0.0, most)
    return np.asarray(np.cumsum(np.log1p(bet_N * (differences_N + margin))))
