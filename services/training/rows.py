"""Training rows: a context with several questions beside each other, each of which sees the context and
itself only.

    prefix | chunk 1 | chunk 2 | ... | question 1, answer 1 | question 2, answer 2 | ...
    0 .. p   p+1 ..                N   N+1 ..                 N+1 ..                      <- positions

In *full* rows the context is plain causal text; in *independent* rows a chunk sees the prefix and itself, as
it does when its keys and values were computed alone and are reused (TurboRAG, section 3). Both kinds stand at
the same positions, so one model learns to read either.

Shapes: B rows, T tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from services.training.contexts import Context
from shared.prompt import PromptTokenizer

_PREFIX, _PADDING, _FIRST_QUESTION = 0, -1, 1000
CONTEXT_WEIGHT = 0.1


@dataclass(slots=True)
class Row:
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    """Of predicting this token from those before it."""
    independent: bool = False

    def append(self, ids: Sequence[int], start: int, segment: int, weight: float) -> None:
        self.ids += ids
        self.positions += range(start, start + len(ids))
        self.segments += [segment] * len(ids)
        self.weights += [weight] * len(ids)


@dataclass(frozen=True, slots=True)
class Batch:
    ids_BT: torch.Tensor
    positions_BT: torch.Tensor
    targets_BT: torch.Tensor
    weights_BT: torch.Tensor
    segments_BT: torch.Tensor
    bias_B1TT: torch.Tensor


class RowMaker:
    def __init__(self, prompt: PromptTokenizer, end_id: int) -> None:
        self._prompt = prompt
        self._end_id = end_id

    def of_context(self, context: Context, independent: bool) -> Row:
        row = Row(independent=independent)
        row.append(self._prompt.prefix_ids, 0, _PREFIX, CONTEXT_WEIGHT)
        for i, passage in enumerate(context.passages):
            row.append(self._prompt.encode_chunk(passage.text), len(row.ids), i + 1, CONTEXT_WEIGHT)
        start = len(row.ids)
        for i, question in enumerate(context.questions):
            asked = self._prompt.encode_question(question.text)
            answered = (*self._prompt.encode(" " + question.answer), self._end_id)
            row.append(asked, start, _FIRST_QUESTION + i, 0.0)
            row.append(answered, start + len(asked), _FIRST_QUESTION + i, 1.0)
        return row

    def of_repetition(self, rng: random.Random, names: Sequence[str], num_repeats: int) -> Row:
        """Names in one order and then in others: the shortest way to learn to copy."""
        row = Row()
        for i in range(num_repeats):
            ids = [
                token for name in rng.sample(names, len(names)) for token in self._prompt.encode(" " + name)
            ]
            row.append(ids, len(row.ids), _PREFIX, 1.0 if i else 0.0)
        return row


def collate(rows: Sequence[Row], multiple: int = 64) -> Batch:
    """Pads to the next multiple of ``multiple`` tokens."""
    length = -(-max(len(row.ids) for row in rows) // multiple) * multiple

    def padded(values: Sequence[float], filler: float) -> list[float]:
        return [*values, *[filler] * (length - len(values))]

    ids_BT = torch.tensor([padded(row.ids, 0) for row in rows])
    segments_BT = torch.tensor([padded(row.segments, _PADDING) for row in rows])
    weights_BT = torch.tensor([padded(row.weights, 0.0) for row in rows])
    independent_B = torch.tensor([row.independent for row in rows])
    targets_BT = torch.roll(ids_BT, -1, 1)
    shifted_BT = torch.roll(weights_BT, -1, 1)
    shifted_BT[:, -1] = 0.0
    shifted_BT[torch.roll(segments_BT, -1, 1) != segments_BT] = 0.0
    return Batch(
        ids_BT=ids_BT,
        positions_BT=torch.tensor([padded(row.positions, 0) for row in rows]),
        targets_BT=targets_BT,
        weights_BT=shifted_BT,
        segments_BT=segments_BT,
        bias_B1TT=_bias(segments_BT, independent_B),
    )


def _bias(segments_BT: torch.Tensor, independent_B: torch.Tensor) -> torch.Tensor:
    """0 where a token may look, a large negative number where not; padding looks at itself, so that no row is
    empty."""
    query_BT1, key_B1T = segments_BT[:, :, None], segments_BT[:, None, :]
    length = segments_BT.shape[1]
    causal_TT = torch.ones(length, length, dtype=torch.bool).tril()
    context_key = (key_B1T >= _PREFIX) & (key_B1T < _FIRST_QUESTION)
    everything = (query_BT1 >= _FIRST_QUESTION) | ~independent_B[:, None, None]
    seen = (query_BT1 == key_B1T) | (key_B1T == _PREFIX) | (context_key & everything)
    allowed_BTT = seen & causal_TT
    return torch.zeros(allowed_BTT.shape, dtype=torch.bfloat16).masked_fill_(~allowed_BTT, -1e4)[:, None]
