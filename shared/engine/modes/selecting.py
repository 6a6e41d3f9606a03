"""Which tokens of a context are computed anew. Plain numbers: tokens are counted from 0 over all chunks in
order.

A ratio names a number of tokens, the same for every mode; which tokens these are is the mode's idea. 0
selects none, 1 all.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

DEFAULT_RATIO = 0.2


def num_selected(ratio: float | None, num_tokens: int) -> int:
    """Halves are rounded up."""
    return int((DEFAULT_RATIO if ratio is None else ratio) * num_tokens + 0.5)


def first_of_chunks(chunk_lens: Sequence[int], count: int) -> tuple[int, ...]:
    """EPIC: as many tokens at the beginning of every chunk but the first, and one more of the first ones of
    them if they do not come out even. When those chunks are used up, the first one's."""
    starts = [sum(chunk_lens[:i]) for i in range(len(chunk_lens))]
    later = sorted(
        (j, start + j)
        for start, length in list(zip(starts, chunk_lens, strict=True))[1:]
        for j in range(length)
    )
    in_turn = [token for _, token in later] + list(range(chunk_lens[0] if chunk_lens else 0))
    return tuple(sorted(in_turn[:count]))


def at_random(num_tokens: int, count: int, seed: int) -> tuple[int, ...]:
    """The control: equal chances for all."""
    return tuple(sorted(random.Random(seed).sample(range(num_tokens), count)))


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
