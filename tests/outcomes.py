"""Compares what was sampled in two ways."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shared.engine.decoding.draws import RowOutcome, Sampled

_ROUNDING = 1e-5
"""Of a log-probability: kernels of processors and devices add up a row in orders of their own."""


def alike(found: Sequence[object], expected: Sequence[object]) -> bool:
    """The same tokens in the same order, and the same log-probabilities but for rounding. Both are rows,
    samples or ranked tokens."""
    ours, theirs = _numbers(found), _numbers(expected)
    return ours[0] == theirs[0] and ours[1] == pytest.approx(theirs[1], abs=_ROUNDING, nan_ok=True)


def _numbers(of: Sequence[object]) -> tuple[list[object], list[float]]:
    """Integers, with what separates one thing from the next, and floats."""
    integers: list[object] = []
    floats: list[float] = []
    for one in of:
        if isinstance(one, RowOutcome):
            parts = [_numbers(one.sampled), _numbers(one.ranked)]
        elif isinstance(one, Sampled):
            parts = [([one.token_id], [one.logprob, *one.watched]), _numbers(one.top_logprobs)]
        else:
            token_id, logprob = one  # type: ignore[misc]
            parts = [([token_id], [logprob])]
        integers.append([of_part for of_part, _ in parts])
        floats += [number for _, of_part in parts for number in of_part]
    return integers, floats
