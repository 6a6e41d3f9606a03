"""Holds contexts as both models read them, and the windows of the auxiliary's tokens that are chosen among.

Shapes: W windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from services.training.twin_request import Ids, PlacedChunk
from shared.selection.grouping import window_lens
from shared.selection.mapping import carry_picks
from shared.selection.selector import PairedChunk


@dataclass(frozen=True, slots=True)
class ModelReading:
    """A context as one model reads it: ``chunks`` in the order of the prompt, and ``questions`` in its
    template."""

    chunks: tuple[PlacedChunk, ...]
    questions: tuple[Ids, ...]

    @property
    def token_ids(self) -> Ids:
        """Of all chunks in order."""
        return tuple(token for chunk in self.chunks for token in chunk.token_ids)


@dataclass(frozen=True, slots=True)
class SelectionContext:
    """``name``: for messages; ``windows``: of each window of the auxiliary's tokens, the primary's that it
    touches, counted over all chunks in order; ``window_lens``: how many of the auxiliary's it has."""

    name: str
    primary: ModelReading
    auxiliary: ModelReading
    windows: tuple[Ids, ...]
    window_lens: tuple[int, ...]

    @classmethod
    def of(
        cls, name: str, primary: ModelReading, auxiliary: ModelReading, paired: Sequence[PairedChunk]
    ) -> SelectionContext:
        """``paired``: the texts of the chunks as both read them, in order."""
        lens = window_lens([len(chunk.auxiliary) for chunk in paired])
        return cls(name, primary, auxiliary, tuple(_windows(paired)), tuple(lens.tolist()))

    @property
    def num_tokens(self) -> int:
        """The primary's, of all chunks."""
        return sum(len(chunk.token_ids) for chunk in self.primary.chunks)

    def tokens_of(self, windows: Sequence[int]) -> Ids:
        """The primary's tokens of several windows, in ascending order."""
        return tuple(sorted({token for window in windows for token in self.windows[window]}))

    def within(self, best_first: Sequence[int], num_tokens: int) -> Ids:
        """The primary's tokens of the first windows, as few windows as have at least ``num_tokens``."""
        chosen: set[int] = set()
        for window in best_first:
            if len(chosen) >= num_tokens:
                break
            chosen.update(self.windows[window])
        return tuple(sorted(chosen))


def _windows(paired: Sequence[PairedChunk]) -> list[Ids]:
    found: list[Ids] = []
    start = 0
    for chunk in paired:
        lens = window_lens([len(chunk.auxiliary)])
        for begin, end in zip(accumulate([0, *lens[:-1]]), accumulate(lens), strict=False):
            picked = np.zeros(len(chunk.auxiliary), dtype=np.bool_)
            picked[int(begin) : int(end)] = True
            touched = carry_picks(picked, chunk.auxiliary, chunk.primary)
            found.append(tuple((start + np.flatnonzero(touched)).tolist()))
        start += len(chunk.primary)
    return found
