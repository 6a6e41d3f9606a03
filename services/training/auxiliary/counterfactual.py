"""Asks what answers would be, were other tokens of a context computed anew: many branches over one stored
context, each of which recomputes tokens of its own and is forced through an answer.

::

    stored     [prefix][chunk 0][chunk 1]                seen by all branches, less what each recomputes
    branch 0         [7 tokens]          [question][answer
    branch 1                 [8 tokens]  [question][answer

What serving computes for a request that lists these tokens (mode ``tokens``), without its KV: rows of all
branches go through the layers together, and keys of the context are rotated to their places once.

Shapes: B branches, P rows of a branch (padded), N placed tokens, R = B·P rows, L layers, H query heads, K kv
heads, G query heads of each, D head_dim, A tokens of all answers, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.training.auxiliary.contexts import ModelReading
from services.training.known_kv import segments_of
from services.training.sight import rotated
from services.training.twin_request import Ids, TwinRequest
from shared.engine.model.adapting import NOTHING_ADAPTED, AdaptedRows
from shared.engine.model.model import LoadedModel
from shared.engine.model.out_of_memory import is_out_of_memory
from shared.engine.model.spec import ModelSpec
from shared.errors import ConfigError, ContextTooLong

_LOGITS_AT_ONCE = 1 << 26  # numbers


@dataclass(frozen=True, slots=True)
class Forced:
    """One branch: the answer to ``question`` (a number) if ``recomputed`` tokens of the context, in ascending
    order, are computed anew."""

    question: int
    recomputed: Ids = ()


@dataclass(frozen=True, slots=True)
class ForcedOutcome:
    """``logprob`` of the whole answer; ``exact``: each of its tokens is the likeliest, so that it is what the
    branch would answer greedily."""

    logprob: float
    exact: bool


@dataclass(frozen=True, slots=True, eq=False)
class PlacedKv:
    """Keys at their places and values [K, N, D] of every layer: the prefix, and chunks behind each other."""

    k_LKND: tuple[Tensor, ...]
    v_LKND: tuple[Tensor, ...]
    prefix_len: int

    @classmethod
    def of(cls, model: LoadedModel, prefix_ids: Ids, reading: ModelReading) -> PlacedKv:
        """As they are stored."""
        prefix, chunks = segments_of(model, prefix_ids, reading.chunks)
        offsets = TwinRequest(prefix_ids, reading.chunks, ()).offsets()
        segments = [*([prefix] if prefix is not None else []), *chunks]
        turns = np.repeat([*([0] if prefix is not None else []), *offsets], [len(s) for s in segments])
        angles = model.spec.rotation().angles(torch.from_numpy(turns))
        layers = range(model.spec.num_layers)
        keys = (rotated(torch.cat([s.k_LTKD[layer] for s in segments]), angles) for layer in layers)
        values = (torch.cat([s.v_LTKD[layer] for s in segments]) for layer in layers)
        return cls(
            tuple(k_NKD.transpose(0, 1).contiguous() for k_NKD in keys),
            tuple(v_NKD.transpose(0, 1).contiguous() for v_NKD in values),
            len(prefix_ids),
        )

    @property
    def num_tokens(self) -> int:
        return self.k_LKND[0].shape[1]


@dataclass(slots=True)
class PassSize:
    """Most rows of one pass, though a branch is never divided; fewer from the moment in which memory ran out,
    which ``say`` is told of."""

    max_rows: int
    say: Callable[[str], None] = lambda line: None

    def halve(self) -> None:
        self.max_rows = max(1, self.max_rows // 2)
        self.say(f"out of memory: from here on at most {self.max_rows} rows in a pass over branches")


class Counterfactuals:
    """Over one context. ``answers``: token ids, by question.

    Raises:
        ContextTooLong: context, question and answer have more positions than the model.
    """

    def __init__(
        self,
        model: LoadedModel,
        prefix_ids: Ids,
        reading: ModelReading,
        answers: Sequence[Ids],
        size: PassSize,
    ) -> None:
        self._model, self._size = model, size
        self._answers = [tuple(answer) for answer in answers]
        pairs = zip(reading.questions, self._answers, strict=True)
        self._tails = [question + answer[:-1] for question, answer in pairs]
        self._context_ids = np.array(reading.token_ids, dtype=np.int64)
        num_positions = len(prefix_ids) + len(self._context_ids) + max(map(len, self._tails), default=0)
        if num_positions > model.spec.sight:
            raise ContextTooLong(
                f"context, question and answer take {num_positions} positions, the model has "
                f"{model.spec.sight}; give fewer or shorter chunks"
            )
        with torch.no_grad():
            self._placed = PlacedKv.of(model, prefix_ids, reading)

    def outcomes(self, wanted: Sequence[Forced]) -> list[ForcedOutcome]:
        """In order.

        Raises:
            ConfigError: out of memory with one branch.
        """
        found: dict[int, ForcedOutcome] = {}
        left = sorted(range(len(wanted)), key=lambda i: self._num_rows(wanted[i]))
        while left:
            group = self._fitting(wanted, left)
            try:
                found |= zip(group, self._run([wanted[i] for i in group]), strict=True)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if len(group) == 1:
                    raise ConfigError(
                        "out of memory with one branch over a context; give fewer or shorter chunks, or a "
                        "machine with more memory"
                    ) from error
                self._size.halve()
            else:
                del left[: len(group)]
        return [found[i] for i in range(len(wanted))]

    def _fitting(self, wanted: Sequence[Forced], left: Sequence[int]) -> list[int]:
        """Branches of similar length together: all are padded to the longest."""
        count = 1
        while count < len(left) and (count + 1) * self._num_rows(wanted[left[count]]) <= self._size.max_rows:
            count += 1
        return list(left[:count])

    def _num_rows(self, forced: Forced) -> int:
        return len(forced.recomputed) + len(self._tails[forced.question])

    @torch.no_grad()
    def _run(self, wanted: Sequence[Forced]) -> list[ForcedOutcome]:
        tails = [self._tails[one.question] for one in wanted]
        step = _BranchStep(
            self._placed, self._context_ids, [one.recomputed for one in wanted], tails, self._model.spec
        )
        hidden_RE = self._model.forward(step)
        answers = [self._answers[one.question] for one in wanted]
        rows = [
            i * step.num_rows + self._num_rows(one) - len(answer) + nth
            for i, (one, answer) in enumerate(zip(wanted, answers, strict=True))
            for nth in range(len(answer))
        ]
        device = hidden_RE.device
        targets_A = torch.tensor([token for answer in answers for token in answer], device=device)
        logprobs_A, exact_A = self._told(hidden_RE[torch.tensor(rows, device=device)], targets_A)
        firsts = np.cumsum([0, *map(len, answers[:-1])])
        logprobs = np.add.reduceat(logprobs_A, firsts).tolist()
        exact = np.logical_and.reduceat(exact_A, firsts).tolist()
        return [ForcedOutcome(*one) for one in zip(logprobs, exact, strict=True)]

    def _told(self, hidden_AE: Tensor, targets_A: Tensor) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        logprobs, exact = [], []
        size = max(1, _LOGITS_AT_ONCE // self._model.spec.vocab_size)
        for hidden, targets in zip(torch.split(hidden_AE, size), torch.split(targets_A, size), strict=True):
            logits_AV = self._model.logits(hidden)
            logprobs.append(logits_AV.log_softmax(-1).gather(1, targets[:, None])[:, 0])
            exact.append(logits_AV.argmax(-1) == targets)
        return torch.cat(logprobs).double().cpu().numpy(), torch.cat(exact).cpu().numpy()


class _BranchStep:
    """One pass over branches: of each what it recomputes, and behind the context its tail."""

    adapted: AdaptedRows = NOTHING_ADAPTED

    def __init__(
        self,
        placed: PlacedKv,
        context_ids: NDArray[np.int64],
        recomputed: Sequence[Ids],
        tails: Sequence[Ids],
        spec: ModelSpec,
    ) -> None:
        self._placed, num_placed = placed, placed.num_tokens
        self.num_rows = max(len(own) + len(tail) for own, tail in zip(recomputed, tails, strict=True))
        ids_BP = np.zeros((len(tails), self.num_rows), dtype=np.int64)
        position_BP = np.zeros_like(ids_BP)  # rows of padding see nothing but themselves
        excluded_BN = np.zeros((len(tails), num_placed), dtype=np.bool_)
        for i, (own, tail) in enumerate(zip(recomputed, tails, strict=True)):
            tokens, end = np.array(own, dtype=np.int64), len(own) + len(tail)
            ids_BP[i, : len(own)], ids_BP[i, len(own) : end] = context_ids[tokens], tail
            position_BP[i, : len(own)] = placed.prefix_len + tokens
            position_BP[i, len(own) : end] = num_placed + np.arange(len(tail))
            excluded_BN[i, placed.prefix_len + tokens] = True
        self.token_ids: list[int] = ids_BP.flatten().tolist()
        rotation, device = spec.rotation(), spec.device
        self._angles = rotation.angles(torch.from_numpy(position_BP.flatten()))
        position_BP1 = torch.from_numpy(position_BP).to(device)[..., None]
        in_front_BPN = torch.arange(num_placed, device=device) < position_BP1
        ahead_PP = torch.ones(self.num_rows, self.num_rows, dtype=torch.bool, device=device).triu(1)
        self._hidden_BPX = torch.cat(  # of all keys: those of the context, then the branch's own
            [
                ~in_front_BPN | torch.from_numpy(excluded_BN).to(device)[:, None],
                ahead_PP.expand(len(tails), -1, -1),
            ],
            -1,
        )

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        """See ``shared.engine.attention.Attention.run``; no segment grows."""
        num_branches = len(self._hidden_BPX)
        num_kv_heads, _, head_dim = k_KRD.shape
        shape = (num_kv_heads, -1, num_branches, self.num_rows, head_dim)
        q_KGBPD, k_KGBPD, v_KGBPD = (
            x.reshape(shape) for x in (scale * self._turned(q_HRD), self._turned(k_KRD), v_KRD)
        )
        k_KND, v_KND = self._placed.k_LKND[layer], self._placed.v_LKND[layer]
        num_placed = self._placed.num_tokens
        q_KXD = q_KGBPD.reshape(num_kv_heads, -1, head_dim)
        of_context = (q_KXD @ k_KND.transpose(1, 2)).view(*q_KGBPD.shape[:-1], num_placed)
        scores = torch.cat([of_context, q_KGBPD @ k_KGBPD.transpose(-1, -2)], -1).float()
        weights = scores.masked_fill_(self._hidden_BPX, float("-inf")).softmax(-1).to(q_HRD.dtype)
        to_context, to_own = torch.split(weights, [num_placed, self.num_rows], -1)
        out: Tensor = (to_context.reshape(num_kv_heads, -1, num_placed) @ v_KND).view_as(q_KGBPD)
        return (out + to_own @ v_KGBPD).reshape(q_HRD.shape)

    def _turned(self, x_HRD: Tensor) -> Tensor:
        return rotated(x_HRD.transpose(0, 1), self._angles).transpose(0, 1)
