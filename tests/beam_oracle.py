"""Beam search as a textbook writes it: whole sequences, each scored by a stock forward over all of it; no KV
is kept.

``closest`` tells how near the search came to deciding otherwise: float noise must not decide a test.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from shared.generation.asked import Beams, EarlyStopping

LastLogits = Callable[[Sequence[int]], torch.Tensor]
"""Generated tokens so far → logits [V] of the next one."""


@dataclass
class Found:
    """(tokens, score), best first."""

    answers: list[tuple[tuple[int, ...], float]] = field(default_factory=list)
    closest: float = float("inf")

    def near(self, a: float, b: float) -> None:
        self.closest = min(self.closest, abs(a - b))


def beam_search(last_logits: LastLogits, beams: Beams, max_tokens: int, eos_ids: Collection[int]) -> Found:
    found = Found()
    alive: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for length in range(1, max_tokens + 1):
        pool = []
        for tokens, total in alive:
            logprobs = last_logits(tokens).double().log_softmax(-1).tolist()
            pool += [((*tokens, token), total + logprob) for token, logprob in enumerate(logprobs)]
        pool.sort(key=lambda one: -one[1])
        found.near(pool[beams.width - 1][1], pool[beams.width][1])
        is_whole = {
            tokens: tokens[-1] in eos_ids or length == max_tokens for tokens, _ in pool[: 4 * beams.width]
        }
        whole = [
            (tokens, total / length**beams.length_penalty)
            for tokens, total in pool[: beams.width]
            if is_whole[tokens]
        ]
        ranked = sorted([*found.answers, *whole], key=lambda one: -one[1])
        for (_, a), (_, b) in pairwise(ranked[: beams.width + 1]):
            found.near(a, b)
        found.answers = ranked[: beams.width]
        alive = [one for one in pool[: 4 * beams.width] if not is_whole[one[0]]]
        for (_, a), (_, b) in pairwise(alive[: beams.width + 1]):
            found.near(a, b)
        alive = alive[: beams.width]
        if not alive:
            break
        if len(found.answers) == beams.width:
            if beams.early_stopping is EarlyStopping.FIRST:
                break
            at = (
                max_tokens
                if beams.early_stopping is EarlyStopping.NEVER and beams.length_penalty > 0
                else length
            )
            hope = alive[0][1] / at**beams.length_penalty
            found.near(hope, found.answers[-1][1])
            if hope <= found.answers[-1][1]:
                break
    return found
