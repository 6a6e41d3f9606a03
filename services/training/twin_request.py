"""Holds what goes through the twin of the engine's step: chunks with the chains that they are computed
behind, placed by a mode, and private branches behind them.

Shapes: L layers, T tokens of a segment, K kv heads, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from torch import Tensor

from services.training.sight import Ints
from shared.errors import InvalidRequest
from shared.generation.modes import GoesBy, Offsets, ReuseMode

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlacedChunk:
    """``chain``: what it is computed behind, beside the prefix: the chunks in front of it in its block, the
    header first."""

    token_ids: Ids
    chain: tuple[Ids, ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentKv:
    """Keys, rotated at local positions 0, 1, 2, …, and values of every layer."""

    k_LTKD: Tensor
    v_LTKD: Tensor

    def __len__(self) -> int:
        return self.k_LTKD.shape[1]

    @property
    def num_bytes(self) -> int:
        return self.k_LTKD.nbytes + self.v_LTKD.nbytes


@dataclass(frozen=True, slots=True)
class KnownKv:
    """Of the prefix (None: there is none) and of a request's chunks, in order."""

    prefix: SegmentKv | None
    chunks: tuple[SegmentKv, ...]


@dataclass(frozen=True, slots=True)
class TwinRequest:
    """``branches``: private tokens behind the context, beside each other, such as a question and its answer.
    ``recomputed``: tokens of the context, counted from 0 over all chunks, that are private as well, and
    common to all branches; under ``full`` all are.

    Raises:
        InvalidRequest: names the field.
    """

    prefix_ids: Ids
    chunks: tuple[PlacedChunk, ...]
    branches: tuple[Ids, ...]
    reuse: ReuseMode = ReuseMode.REORDERED
    recomputed: Ids = ()

    def __post_init__(self) -> None:
        if self.reuse.row.weighed or self.reuse.row.goes_by is GoesBy.RATIO:
            raise InvalidRequest(
                f"reuse: {self.reuse.value} is not trained under; place chunks by reordered or composite, or "
                "list what is recomputed under tokens"
            )
        if any(not 0 <= token < self.starts[-1] for token in self.recomputed):
            raise InvalidRequest(f"recomputed: the context has {self.starts[-1]} tokens, counted from 0")

    @property
    def starts(self) -> list[int]:
        """Of each chunk in the context, and where that ends."""
        return list(accumulate((len(chunk.token_ids) for chunk in self.chunks), initial=0))

    @property
    def private(self) -> Ids:
        """Tokens of the context that are computed as private rows, in ascending order."""
        everything = range(self.starts[-1])
        return tuple(sorted(set(self.recomputed) if self.reuse.row.stored else everything))

    def kept(self) -> list[Ints]:
        """Of each chunk the tokens that are seen as they are stored."""
        seen = np.ones(self.starts[-1], dtype=np.bool_)
        seen[list(self.private)] = False
        return [np.flatnonzero(chunk) for chunk in np.split(seen, self.starts[1:-1])] if self.chunks else []

    def offsets(self) -> list[int]:
        """Of each chunk in the request."""
        cumulative = self.reuse.row.offsets is Offsets.CUMULATIVE
        return [len(self.prefix_ids) + (start if cumulative else 0) for start in self.starts[:-1]]


@dataclass(frozen=True, slots=True)
class RequestRows:
    """Places of a request's tokens among a step's rows. ``chunks``: as they are stored; empty if they are
    known, or wholly private. ``private``: of the context."""

    prefix: range
    chunks: tuple[range, ...]
    private: range
    branches: tuple[range, ...]
