"""From scores of tokens to the tokens that are worth recomputing: never single ones, whose neighbours would
stay as they were.

All functions take the scores of all chunks in a row and the chunks' lengths; windows restart at every chunk.
Equal scores (and windows of equal scores) go by position, the one in front first; what is no number goes
last. Shapes: T tokens, C chunks, W windows.

``paper``    of all tokens the best ones are picked, as many as the ratio says; of every window of 8 that restarts at the chunk, all
             tokens if at least 5 of them are picked, else none. A shorter window at a chunk's end needs the same share, rounded up.
             Picks that lie apart leave almost nothing: of independent ones at 20 %, one window of 8 in 96 has 5.
``sliding``  the same picks; a window of 8 stands at every token of a chunk instead of at every eighth, and all tokens of all
             windows with at least 5 picks are taken (the second version of the paper). A chunk of fewer than 8 is one window.
``budget``   windows of 8 by their mean score, best first, until the ratio is met; so the tokens taken are less than one window
             more than were asked for, if there are so many.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.engine.modes.token_selection import num_selected
from shared.errors import InvalidRequest
from shared.generation.selection import Grouping

Scores = NDArray[np.float32]
Mask = NDArray[np.bool_]
Ranks = NDArray[np.int64]

WINDOW = 8
THRESHOLD = 5


def num_asked(ratio: float, num_tokens: int) -> int:
    """Nearest number of tokens; halves up.

    Raises:
        InvalidRequest: the ratio is no number from 0 to 1.
    """
    if not 0 <= ratio <= 1:  # False for NaN
        raise InvalidRequest(f"recompute_ratio: {ratio!r} is out of range; it must be 0 to 1")
    return num_selected(ratio, num_tokens)


def group(
    scores_T: Scores, chunk_lens: Sequence[int], ratio: float, form: Grouping = Grouping.BUDGET
) -> Mask:
    """Marks the tokens to recompute. Ratio 1 takes all tokens and 0 none, whatever the form.

    Raises:
        InvalidRequest: the ratio is no number from 0 to 1.
    """
    asked = num_asked(ratio, len(scores_T))
    if form is Grouping.BUDGET:
        return until(window_ranks(scores_T, chunk_lens), asked)
    picked_T = best_tokens(scores_T, asked)
    return (_in_windows if form is Grouping.PAPER else _in_sliding_windows)(picked_T, chunk_lens)


def best_tokens(scores_T: Scores, num_tokens: int) -> Mask:
    """Exactly so many, or all there are."""
    best_first = np.argsort(-_comparable(scores_T), kind="stable")
    picked_T = np.zeros(len(scores_T), dtype=bool)
    picked_T[best_first[:num_tokens]] = True
    return picked_T


def window_ranks(scores_T: Scores, chunk_lens: Sequence[int]) -> Ranks:
    """Of every token the rank of its window: 0 for the one with the best mean score."""
    lens_W = window_lens(chunk_lens)
    mean_W = np.add.reduceat(_comparable(scores_T), np.cumsum(lens_W) - lens_W) / lens_W
    rank_W = np.argsort(np.argsort(-mean_W, kind="stable"))
    return np.repeat(rank_W, lens_W)


def until(ranks_T: Ranks, num_tokens: int) -> Mask:
    """All tokens of the first ranks, as few ranks as have at least ``num_tokens``. The largest rank there is,
    ``UNTOUCHED``, means never."""
    never = np.iinfo(np.int64).max
    in_order = np.sort(ranks_T[ranks_T != never])
    if num_tokens <= 0 or not len(in_order):
        return np.zeros(len(ranks_T), dtype=bool)
    last = int(in_order[min(num_tokens, len(in_order)) - 1])
    return ranks_T <= last


def _in_windows(picked_T: Mask, chunk_lens: Sequence[int]) -> Mask:
    lens_W = window_lens(chunk_lens)
    picks_W = np.add.reduceat(picked_T.astype(np.int64), np.cumsum(lens_W) - lens_W)
    return np.repeat(picks_W >= _needed(lens_W), lens_W)


def _in_sliding_windows(picked_T: Mask, chunk_lens: Sequence[int]) -> Mask:
    chosen_T = np.zeros(len(picked_T), dtype=bool)
    start = 0
    for length in chunk_lens:
        if size := min(WINDOW, length):
            picks = np.convolve(picked_T[start : start + length], np.ones(size, dtype=np.int64), mode="valid")
            enough = picks >= _needed(np.array(size))
            chosen_T[start : start + length] = np.convolve(enough, np.ones(size, dtype=np.int64)) > 0
        start += length
    return chosen_T


def _needed(lens_W: NDArray[np.int64]) -> NDArray[np.int64]:
    """The threshold, scaled to the length of a shorter window and rounded up."""
    return -(-lens_W * THRESHOLD // WINDOW)


def window_lens(chunk_lens: Sequence[int]) -> NDArray[np.int64]:
    """Full windows and, where a chunk does not divide evenly, a shorter one at its end."""
    lens = [n for length in chunk_lens for n in (*[WINDOW] * (length // WINDOW), length % WINDOW) if n]
    return np.array(lens, dtype=np.int64)


def _comparable(scores_T: Scores) -> NDArray[np.float64]:
    largest = float(np.finfo(np.float32).max)
    return np.nan_to_num(scores_T.astype(np.float64), nan=-np.inf, posinf=largest, neginf=-np.inf)
