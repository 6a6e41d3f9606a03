"""Counts and picks the tokens of a context that are computed anew. Plain numbers: tokens are counted from 0
over all chunks in order.

A ratio names a number of tokens, the same for every mode; which tokens these are is the mode's idea. 0
selects none, 1 all.
"""

from __future__ import annotations

from collections.abc import Sequence

from shared.generation.asked import GenerateRequest, total_len
from shared.generation.modes import GoesBy

DEFAULT_RATIO = 0.2


def num_selected(ratio: float | None, num_tokens: int) -> int:
    """Halves are rounded up."""
    return int((DEFAULT_RATIO if ratio is None else ratio) * num_tokens + 0.5)


def blend_counts(ratio: float | None, num_tokens: int, num_layers: int) -> list[int]:
    """CacheBlend: how many tokens each layer computes. All in the first two, whose keys and values tell how
    far the stored ones are off; then fewer from layer to layer, so many that the mean of all layers is the
    ratio. Below 2 / num_layers nothing is left for the later ones."""
    asked = DEFAULT_RATIO if ratio is None else ratio
    num_later = num_layers - 2
    mean = max(0.0, asked * num_layers - 2) / max(1, num_later)
    spread = min(mean, 1 - mean) / 2
    slopes = [1 - 2 * i / (num_later - 1) if num_later > 1 else 0 for i in range(num_later)]
    return [num_tokens] * min(2, num_layers) + [
        num_selected(mean + spread * slope, num_tokens) for slope in slopes
    ]


def best(scores: Sequence[float], count: int) -> tuple[int, ...]:
    """Those with the highest scores; of equal ones the first."""
    return tuple(sorted(sorted(range(len(scores)), key=lambda token: -scores[token])[:count]))


def num_private(request: GenerateRequest) -> int:
    """The number of tokens of its context that a request computes for itself alone, at most."""
    row, num_tokens = request.reuse.row, total_len(request.chunks)
    if not row.stored or row.surveys_all:
        return num_tokens
    match row.goes_by:
        case GoesBy.NOTHING:
            return 0
        case GoesBy.TOKENS:
            return sum(map(len, set(request.recompute.sets)))
        case GoesBy.RATIO:
            sets = len(request.questions) if request.reuse.needs_question else 1
            return sets * num_selected(request.recompute.ratio, num_tokens)
