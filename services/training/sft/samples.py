"""Holds what a model is fine-tuned on: ids of a context, and of what is said behind it, with the tokens that
are to be learned.

Shapes: P predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.training.sight import on_device
from services.training.twin import TwinStep
from services.training.twin_request import Ids, PlacedChunk, TwinRequest
from shared.generation.modes import ReuseMode


@dataclass(frozen=True, slots=True)
class Said:
    """A branch behind the context. ``learned``: runs of its tokens that are to be predicted, such as an
    answer, first and behind the last; no run begins at its first token."""

    token_ids: Ids
    learned: tuple[tuple[int, int], ...]

    @classmethod
    def answered(cls, question: Ids, answer: Ids) -> Said:
        return cls(question + answer, ((len(question), len(question) + len(answer)),))

    @property
    def placed(self) -> Ids:
        """Without what comes behind the last prediction, which predicts nothing."""
        return self.token_ids[: self.learned[-1][1] - 1]


@dataclass(frozen=True, slots=True)
class SftSample:
    """``name``: where it is from, for messages. Without documents ``prefix_ids`` and ``chunks`` are empty,
    and all text is in the branch."""

    name: str
    prefix_ids: Ids
    chunks: tuple[PlacedChunk, ...]
    branches: tuple[Said, ...]

    def request(self, reuse: ReuseMode) -> TwinRequest:
        return TwinRequest(self.prefix_ids, self.chunks, tuple(one.placed for one in self.branches), reuse)

    @property
    def num_tokens(self) -> int:
        """That are learned."""
        return sum(end - begin for one in self.branches for begin, end in one.learned)

    @property
    def identity(self) -> object:
        return self.prefix_ids, self.chunks, self.branches

    def num_positions(self, reuse: ReuseMode) -> int:
        """Positions that the longest run of it takes: the request, or a chain."""
        request = self.request(reuse)
        in_context = max((len(one) for one in request.branches), default=0) + request.starts[-1]
        chains = [sum(map(len, (*one.chain, one.token_ids))) for one in self.chunks]
        return len(self.prefix_ids) + max(in_context, *(chains if reuse.row.stored else ()), 0)


@dataclass(frozen=True, slots=True)
class Predictions:
    """``rows_P`` of a step predict ``targets_P``."""

    rows_P: Tensor
    targets_P: Tensor

    @classmethod
    def of(cls, step: TwinStep, samples: Sequence[SftSample], device: torch.device) -> Predictions:
        rows: list[int] = []
        targets: list[int] = []
        for sample, places in zip(samples, step.rows, strict=True):
            for said, branch in zip(sample.branches, places.branches, strict=True):
                for begin, end in said.learned:
                    rows += branch[begin - 1 : end - 1]
                    targets += said.token_ids[begin:end]
        return cls(on_device(np.array(rows), device), on_device(np.array(targets), device))
