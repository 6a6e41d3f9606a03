"""Compares two ways of answering the same questions: tests, intervals, and how alike two judgements of the
same tokens, or two distributions of the next one, are.

Shapes: Q questions, C contexts, B bootstrap samples, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
_SMALLEST = (
    1e-9  # of a distribution, so that a token that one side gives nothing does not make all of it infinite
)
_FLIPS_AT_ONCE = 1 << 20
_LEAST_REST = 1e-6  # below it a rest is rounding


@dataclass(frozen=True, slots=True)
class Interval:
    """95 %."""

    value: float
    low: float
    high: float


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p: how likely questions that only one of two ways answers are parted so unevenly by
    chance."""
    num = only_first + only_second
    tail = sum(math.comb(num, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, float(2 * tail / 2**num))


def flip_test(differences_Q: Floats, num_samples: int = 9999, seed: int = 0) -> float:
    """Two-sided p of paired scores that may be anything: how likely their mean difference is as large, were
    the sign of each a coin's (Fisher's randomisation test, the observed signs counted among the samples)."""
    moved_Q = differences_Q[differences_Q != 0]
    if not len(moved_Q):
        return 1.0
    rng = np.random.Generator(np.random.Philox(seed))
    observed, as_large, left = abs(float(moved_Q.sum())), 0, num_samples
    while left:
        num = min(left, 1 + _FLIPS_AT_ONCE // len(moved_Q))
        signs_BQ = rng.integers(0, 2, (num, len(moved_Q)), dtype=np.int8) * 2.0 - 1.0
        as_large += int((np.abs(signs_BQ @ moved_Q) >= observed * (1 - _SMALLEST)).sum())
        left -= num
    return (as_large + 1) / (num_samples + 1)


def wilson(right: int, asked: int, z: float = 1.96) -> tuple[float, float]:
    """The score interval of a proportion (Wilson, 1927)."""
    share, spread = right / asked, z * z / asked
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / asked + spread / (4 * asked))
    return middle - half, middle + half


class Clusters:
    """Resamples contexts, since questions about one context are not independent of each other."""

    def __init__(self, context_Q: NDArray[np.int64], num_samples: int = 2000, seed: int = 0) -> None:
        contexts_C, self._index_Q = np.unique(context_Q, return_inverse=True)
        self._num = len(contexts_C)
        rng = np.random.Generator(np.random.Philox(seed))
        self._times_BC = rng.multinomial(self._num, np.full(self._num, 1 / self._num), size=num_samples)

    def interval(self, statistic: Callable[..., Floats], *values_Q: NDArray[np.float64] | Bools) -> Interval:
        """``statistic`` of the means of each of the values, over all questions and over those of every
        sample."""
        sums = [np.bincount(self._index_Q, v.astype(np.float64), self._num) for v in values_Q]
        sizes_C = np.bincount(self._index_Q, minlength=self._num)
        means_B = [self._times_BC @ s / (self._times_BC @ sizes_C) for s in sums]
        with np.errstate(divide="ignore", invalid="ignore"):
            samples_B = statistic(*means_B)
            value = float(statistic(*(np.array(s.sum() / sizes_C.sum()) for s in sums)))
        low, high = (
            np.percentile(finite_B, [2.5, 97.5])
            if len(finite_B := samples_B[np.isfinite(samples_B)])
            else (value, value)
        )
        return Interval(value, float(low), float(high))


def median_of(values: Sequence[float], num_samples: int = 2000, seed: int = 0) -> Interval:
    """The median, such as of the differences of pairs, with its interval by resampling."""
    found_V = np.asarray(values, np.float64)
    rng = np.random.Generator(np.random.Philox(seed))
    medians_B = [np.median(rng.choice(found_V, len(found_V))) for _ in range(num_samples)]
    low, high = np.percentile(medians_B, [2.5, 97.5])
    return Interval(float(np.median(found_V)), float(low), float(high))


def won_back(ours: Floats, least: Floats, most: Floats) -> Floats:
    """Of what ``most`` gets right beyond ``least``, the share that we do. It means nothing where these two
    are alike."""
    return (ours - least) / (most - least)


def agreement(
    reference_T: NDArray[np.float32], ours_T: NDArray[np.float32], ratio: float
) -> tuple[float, float]:
    """KL divergence of ours from the reference in nats, both as shares of 1, and the Jaccard index of their
    best tokens."""
    p_T, q_T = _shares(reference_T), _shares(ours_T)
    num_best = max(1, int(ratio * len(p_T) + 0.5))
    best, ours = (set(np.argsort(-x_T, kind="stable")[:num_best].tolist()) for x_T in (p_T, q_T))
    return float((p_T * np.log(p_T / q_T)).sum()), len(best & ours) / len(best | ours)


def divergence(reference: Mapping[int, float], ours: Mapping[int, float]) -> float:
    """KL divergence in nats of two distributions over the tokens that both tell of and the rest, which counts
    as one; both by log-probability."""
    found, p_rest, q_rest = 0.0, 1.0, 1.0
    for token_id, logprob in reference.items():
        if (our_logprob := ours.get(token_id)) is None:
            continue
        p, q = math.exp(logprob), math.exp(our_logprob)
        found += p * (logprob - our_logprob)
        p_rest, q_rest = p_rest - p, q_rest - q
    if p_rest > _LEAST_REST:
        found += p_rest * math.log(p_rest / max(q_rest, _LEAST_REST))
    return max(0.0, found)


def _shares(scores_T: NDArray[np.float32]) -> Floats:
    raised_T = scores_T.astype(np.float64) / max(float(scores_T.sum()), _SMALLEST) + _SMALLEST
    return np.asarray(raised_T / raised_T.sum())
