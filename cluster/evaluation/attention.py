"""Measures a model's attention under TurboRAG's three masks and positions (its Figure 2): how much chunks
attend to each other at all, and how a question's attention is spread over them.

Stock ``transformers`` reads prefix, chunks and question in one forward pass each: causal; independent chunks
with composite positions; independent chunks with reordered positions.

Shapes: L layers, H heads, T tokens.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.measuring.report import Measurement

Floats = NDArray[np.float32]
_CELLS = 72  # of a side of a picture


class MaskKind(enum.StrEnum):
    CAUSAL = "causal, as full"
    COMPOSITE = "independent chunks, composite positions"
    REORDERED = "independent chunks, reordered positions"


@dataclass(frozen=True, slots=True)
class AttentionCase:
    prefix_ids: tuple[int, ...]
    chunks: tuple[tuple[int, ...], ...]
    question_ids: tuple[int, ...]

    @property
    def borders(self) -> list[int]:
        """Returns where prefix, chunks, question begin, and where all of it ends."""
        lens = [len(self.prefix_ids), *map(len, self.chunks), len(self.question_ids)]
        return list(accumulate(lens, initial=0))

    @property
    def token_ids(self) -> list[int]:
        return [token for piece in (self.prefix_ids, *self.chunks, self.question_ids) for token in piece]


@dataclass(frozen=True, slots=True)
class MaskPicture:
    """Means over layers and heads. ``cells``: of the square of all tokens, made smaller; ``of_question``: the
    share of the question's attention that each chunk gets, of what chunks get."""

    kind: MaskKind
    cells: Sequence[Sequence[float]]
    of_question: Sequence[float]


@dataclass(frozen=True, slots=True)
class AttentionStudy:
    """
    inter_chunk: share of the attention of chunks' tokens that goes to other chunks, under the causal mask;
    own_chunk, to_prefix: that which goes elsewhere. Of the first chunk, which has none in front of it,
    nothing counts. Means over ``num_cases``.
    pictures: of the first case; ``borders``: between its pieces, as shares of its length.
    """

    inter_chunk: float
    own_chunk: float
    to_prefix: float
    num_cases: int
    num_tokens: int
    borders: Sequence[float]
    pictures: Sequence[MaskPicture]

    def measurements(self) -> list[Measurement]:
        shares = {"inter_chunk": self.inter_chunk, "own_chunk": self.own_chunk, "prefix": self.to_prefix}
        return [
            Measurement(f"attention_{name}", share, "fraction", n=self.num_cases)
            for name, share in shares.items()
        ]


def study_attention(model: str, cases: Sequence[AttentionCase]) -> AttentionStudy:
    """``model``: a directory or hub id."""
    import transformers
    from transformers import AutoModelForCausalLM

    transformers.utils.logging.disable_progress_bar()
    loaded = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager", dtype=torch.float32)
    return study_of(loaded.eval(), cases)


@torch.no_grad()
def study_of(loaded: Any, cases: Sequence[AttentionCase]) -> AttentionStudy:
    """``loaded``: with eager attention, in float32."""
    shares = np.array([_shares(attention(loaded, case, MaskKind.CAUSAL), case) for case in cases])
    first = cases[0]
    num_tokens = len(first.token_ids)
    pictures = []
    for kind in MaskKind:
        weights_TT = attention(loaded, first, kind)
        pictures.append(MaskPicture(kind, _smaller(weights_TT), _of_question(weights_TT, first)))
    inter, own, prefix = shares.mean(axis=0).tolist()
    borders = [border / num_tokens for border in first.borders[1:-1]]
    return AttentionStudy(inter, own, prefix, len(cases), num_tokens, borders, pictures)


@torch.no_grad()
def attention(loaded: Any, case: AttentionCase, kind: MaskKind) -> Floats:
    """Weights [T, T], means over layers and heads; each row adds up to 1."""
    ids_1T = torch.tensor([case.token_ids])
    told = loaded(
        input_ids=ids_1T,
        attention_mask=_mask(case, kind),
        position_ids=_positions(case, kind),
        output_attentions=True,
        use_cache=False,
    )
    weights_TT: Tensor = sum(layer[0].mean(dim=0) for layer in told.attentions) / len(told.attentions)
    return weights_TT.numpy()


def _mask(case: AttentionCase, kind: MaskKind) -> Tensor:
    """Returns what is added to scores [1, 1, T, T]."""
    num, borders = len(case.token_ids), case.borders
    seen_TT = torch.ones(num, num, dtype=torch.bool).tril()
    if kind is not MaskKind.CAUSAL:
        for start, end in pairwise(borders[1:-1]):
            seen_TT[start:end, borders[1] : start] = False
    hidden_TT = torch.zeros(num, num).masked_fill(~seen_TT, torch.finfo(torch.float32).min)
    return hidden_TT[None, None]


def _positions(case: AttentionCase, kind: MaskKind) -> Tensor:
    positions_T, borders = torch.arange(len(case.token_ids)), case.borders
    if kind is MaskKind.COMPOSITE:
        for start, end in pairwise(borders[1:-1]):
            positions_T[start:end] -= start - borders[1]
    return positions_T[None]


def _shares(weights_TT: Floats, case: AttentionCase) -> tuple[float, float, float]:
    """To other chunks, to its own, to the prefix: of the rows of all chunks but the first."""
    borders = case.borders
    of_rows = np.array(
        [
            (row_T[borders[1] : start].sum(), row_T[start:end].sum(), row_T[: borders[1]].sum())
            for start, end in list(pairwise(borders[1:-1]))[1:]
            for row_T in weights_TT[start:end]
        ]
    )
    inter, own, prefix = of_rows.mean(axis=0).tolist()
    return inter, own, prefix


def _of_question(weights_TT: Floats, case: AttentionCase) -> list[float]:
    borders = case.borders
    rows_QT = weights_TT[borders[-2] :]
    got = [float(rows_QT[:, start:end].sum()) for start, end in pairwise(borders[1:-1])]
    return [one / sum(got) for one in got]


def _smaller(weights_TT: Floats) -> list[list[float]]:
    """Means over rows, sums over columns, of at most ``_CELLS`` of each."""
    num = len(weights_TT)
    edges = [i * num // min(num, _CELLS) for i in range(min(num, _CELLS))]
    smaller = np.add.reduceat(np.add.reduceat(weights_TT, edges, axis=0), edges, axis=1)
    heights = np.diff([*edges, num])[:, None]
    return [[round(float(cell), 5) for cell in row] for row in smaller / heights]
