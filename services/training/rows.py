"""Training rows: a context with several questions beside each other, each of which sees the context and
itself only, placed as it is served.

Under ``full`` the context is plain causal text; under ``reordered`` every chunk is computed behind the prefix
and its chain alone, and read at its place in the request (``services.training.twin``). One model learns to
read both.

Shapes: P predictions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from services.training.contexts import Context
from services.training.twin import TwinStep
from services.training.twin_request import Ids, PlacedChunk, RequestRows, TwinRequest
from shared.engine.model.spec import ModelSpec
from shared.generation.modes import ReuseMode
from shared.prompt import PromptTokenizer

CONTEXT_WEIGHT = 0.1
ANSWER_WEIGHT = 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """``given``: of each branch, how many of its tokens are not to be predicted, such as its question. The
    last token of a branch is predicted, and predicts nothing."""

    request: TwinRequest
    given: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        request = self.request
        return len(request.prefix_ids) + request.starts[-1] + sum(map(len, request.branches))


@dataclass(frozen=True, slots=True)
class Batch:
    """``rows_P`` of the step predict ``targets_P``. ``answers``: which predictions make up an answer."""

    step: TwinStep
    rows_P: Tensor
    targets_P: Tensor
    weights_P: Tensor
    answers: tuple[slice, ...]


class RowMaker:
    def __init__(self, prompt: PromptTokenizer, end_id: int) -> None:
        self._prompt = prompt
        self._end_id = end_id

    def of_context(self, context: Context, reuse: ReuseMode) -> Row:
        """Chunks are isolated, as those of the papers are."""
        prompt = self._prompt
        chunks = tuple(PlacedChunk(prompt.encode_chunk(passage.text)) for passage in context.passages)
        asked = [prompt.encode_question(question.text) for question in context.questions]
        answers = [(*prompt.encode(" " + question.answer), self._end_id) for question in context.questions]
        branches = [question + answer for question, answer in zip(asked, answers, strict=True)]
        return _row(prompt.prefix_ids, chunks, branches, tuple(map(len, asked)), reuse)

    def of_repetition(self, rng: random.Random, names: Sequence[str], num_repeats: int) -> Row:
        """Names in one order and then in others: the shortest way to learn to copy."""
        ids: list[int] = []
        given = 0
        for i in range(num_repeats):
            for name in rng.sample(names, len(names)):
                ids += self._prompt.encode(" " + name)
            given = given or (len(ids) if not i else 0)
        return _row((), (), [tuple(ids)], (given,), ReuseMode.FULL)


def collate(rows: Sequence[Row], spec: ModelSpec) -> Batch:
    """
    Raises:
        ContextTooLong: a row has more positions than the model.
    """
    step = TwinStep([row.request for row in rows], spec)
    predicting: list[int] = []
    targets: list[int] = []
    weights: list[float] = []
    answers: list[slice] = []
    for row, places in zip(rows, step.rows, strict=True):
        for run in _context_runs(row.request, places):
            predicting += run[:-1]
            targets += (step.token_ids[i] for i in run[1:])
            weights += [CONTEXT_WEIGHT] * len(run[1:])
        for branch, given, last in zip(places.branches, row.given, row.last, strict=True):
            answers.append(slice(len(predicting), len(predicting) + len(branch) - given + 1))
            predicting += branch[given - 1 :]
            targets += (*(step.token_ids[i] for i in branch[given:]), last)
            weights += [ANSWER_WEIGHT] * (len(branch) - given + 1)
    return Batch(step, torch.tensor(predicting), torch.tensor(targets), torch.tensor(weights), tuple(answers))


def _row(
    prefix_ids: Ids,
    chunks: tuple[PlacedChunk, ...],
    branches: Sequence[Ids],
    given: tuple[int, ...],
    reuse: ReuseMode,
) -> Row:
    request = TwinRequest(prefix_ids, chunks, tuple(branch[:-1] for branch in branches), reuse)
    return Row(request, given, tuple(branch[-1] for branch in branches))


def _context_runs(request: TwinRequest, places: RequestRows) -> Iterator[range]:
    """Rows of the prefix and of each chunk, which predict what follows in the same run."""
    yield places.prefix
    if request.reuse.row.stored:
        yield from places.chunks
    else:
        for begin, end in pairwise(request.starts):
            yield places.private[begin:end]
