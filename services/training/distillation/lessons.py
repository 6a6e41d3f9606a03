"""Holds what a pupil is trained on: contexts with questions, and what the teacher said to them.

Shapes: A tokens of an answer, K of the teacher's likeliest tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from services.training.twin_request import Ids, PlacedChunk, TwinRequest
from shared.generation.modes import ReuseMode


@dataclass(frozen=True, slots=True)
class AskedContext:
    """``name``: for messages; ``chunks``: as they are retrieved; ``blocks``: ids of the chunks of the whole
    blocks that these are from, in order, which the teacher reads; ``questions``: ids."""

    name: str
    chunks: tuple[PlacedChunk, ...]
    blocks: tuple[Ids, ...]
    questions: tuple[Ids, ...]


@dataclass(frozen=True, slots=True)
class Taught:
    """The teacher's answer to a question. ``top_AK``: its likeliest tokens in front of every token of it,
    ``logprobs_AK`` of these, ``rest_A`` of all others together; without others −∞."""

    answer: Ids
    top_AK: Tensor
    logprobs_AK: Tensor
    rest_A: Tensor

    @classmethod
    def of(cls, answer: Ids, logits_AV: Tensor, top_k: int) -> Taught:
        logprobs_AV = logits_AV.log_softmax(-1)
        logprobs_AK, top_AK = logprobs_AV.topk(min(top_k, logprobs_AV.shape[-1]))
        return cls(answer, top_AK, logprobs_AK, _rest(logprobs_AV, top_AK))

    @classmethod
    def certain(cls, answer: Ids, device: torch.device) -> Taught:
        """A labelled answer: the divergence from it is its cross-entropy."""
        top_A1 = torch.tensor(answer, device=device)[:, None]
        logprobs_A1 = torch.zeros(top_A1.shape, device=device)
        return cls(answer, top_A1, logprobs_A1, torch.full((len(answer),), float("-inf"), device=device))

    @classmethod
    def joined(cls, answers: Iterable[Taught]) -> Taught:
        """One answer behind the other, for their losses to be computed at once."""
        every = list(answers)
        parts = ([getattr(one, name) for one in every] for name in ("top_AK", "logprobs_AK", "rest_A"))
        return cls(tuple(token for one in every for token in one.answer), *map(torch.cat, parts))

    def to(self, device: torch.device) -> Taught:
        return Taught(self.answer, *(x.to(device) for x in (self.top_AK, self.logprobs_AK, self.rest_A)))

    def divergence(self, logits_AV: Tensor) -> Tensor:
        """KL from the teacher's distribution to that of these logits [A], tokens beyond the likeliest counted
        as one."""
        logprobs_AV = logits_AV.log_softmax(-1)
        apart_AK = self.logprobs_AK.exp() * (self.logprobs_AK - logprobs_AV.gather(1, self.top_AK))
        if self.top_AK.shape[-1] == logprobs_AV.shape[-1]:
            return apart_AK.sum(-1)
        rest_A = self.rest_A.exp() * (self.rest_A - _rest(logprobs_AV, self.top_AK))
        return apart_AK.sum(-1) + rest_A.where(self.rest_A > float("-inf"), 0.0)

    def agreement(self, logits_AV: Tensor) -> Tensor:
        """Says where the likeliest token is the teacher's [A]."""
        return logits_AV.argmax(-1) == self.top_AK[:, 0]


@dataclass(frozen=True, slots=True)
class DistilledLesson:
    """``taught``: by question."""

    context: AskedContext
    taught: tuple[Taught, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(one.answer) for one in self.taught)

    @property
    def identity(self) -> object:
        return self.context, [one.answer for one in self.taught]

    def request(self, prefix_ids: Ids, reuse: ReuseMode) -> TwinRequest:
        """Returns what the pupil reads: every question with the teacher's answer, whose last token predicts
        nothing."""
        pairs = zip(self.context.questions, self.taught, strict=True)
        branches = tuple(question + taught.answer[:-1] for question, taught in pairs)
        return TwinRequest(prefix_ids, self.context.chunks, branches, reuse)


def _rest(logprobs_AV: Tensor, top_AK: Tensor) -> Tensor:
    return logprobs_AV.scatter(1, top_AK, float("-inf")).logsumexp(-1)
