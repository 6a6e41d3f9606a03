"""Beam search, decided over log-probabilities alone: no model, no KV.

Every step each running beam is continued by every token; the ``width`` best continuations by summed
log-probability that do not end go on. A continuation that ends (an end mark, or the last token allowed)
becomes a hypothesis if it is among the ``width`` best of all; the ``width`` hypotheses with the best *scores*
are kept. Definitions, those of ``transformers``:

score = summed log-probability / length ** length_penalty, where length counts generated tokens, the end mark
included. 0 means no penalty; above 0 longer hypotheses are favoured, below 0 shorter ones. The search stops
when there are ``width`` hypotheses and

    FIRST     nothing else (``early_stopping=True``)
    ESTIMATE  no running beam, scored at its present length, beats the worst of them (``early_stopping=False``)
    NEVER     no running beam can beat the worst of them at any length, taken as ``max_tokens`` if ``length_penalty`` favours
              length, else as its present one (``early_stopping="never"``)

Equal sums go to the beam with the better rank, then to the smaller token id. Shapes: V vocabulary.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from shared.engine.decoding.sampling import top
from shared.generation.asked import Beams, EarlyStopping


@dataclass(frozen=True, slots=True)
class Step:
    """One token of a hypothesis, and what it was chosen among."""

    token_id: int
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """``ended``: by an end mark, not by its length."""

    steps: tuple[Step, ...]
    score: float
    ended: bool


@dataclass(frozen=True, slots=True)
class Continuation:
    """A beam that goes on: the continuation of the one with index ``parent`` in the step before."""

    parent: int
    steps: tuple[Step, ...]
    total: float


class BeamSearch:
    """``eos_ids``: end marks; empty when they are to be ignored."""

    def __init__(
        self, beams: Beams, max_tokens: int, eos_ids: Collection[int], top_logprobs: int = 0
    ) -> None:
        self._beams = beams
        self._max_tokens = max_tokens
        self._eos_ids = eos_ids
        self._top_logprobs = top_logprobs
        self.running = [Continuation(0, (), 0.0)]
        self.hypotheses: list[Hypothesis] = []

    def advance(self, logprobs: Sequence[torch.Tensor]) -> list[Continuation]:
        """``logprobs``: of each running beam's next token, [V]. The beams that run from here on, best first;
        none: it is over."""
        width, length = self._beams.width, len(self.running[0].steps) + 1
        tops = [top(logprobs_V, self._top_logprobs) for logprobs_V in logprobs]
        goes_on: list[Continuation] = []
        for rank, (parent, token_id, total) in enumerate(self._candidates(logprobs)):
            step = Step(token_id, float(logprobs[parent][token_id]), tops[parent])
            steps = (*self.running[parent].steps, step)
            ended = token_id in self._eos_ids
            if not ended and length < self._max_tokens:
                goes_on.append(Continuation(parent, steps, total))
            elif rank < width:
                self.hypotheses.append(Hypothesis(steps, total / length**self._beams.length_penalty, ended))
        self.hypotheses = sorted(self.hypotheses, key=lambda h: -h.score)[:width]
        self.running = [] if self._over(goes_on, length) else goes_on[:width]
        return self.running

    def _candidates(self, logprobs: Sequence[torch.Tensor]) -> list[tuple[int, int, float]]:
        """(beam, token, sum) of the best continuations, best first: so many that ``width`` of them do not
        end."""
        count = self._beams.width * max(2, 1 + len(self._eos_ids))
        found = []
        for parent, (logprobs_V, beam) in enumerate(zip(logprobs, self.running, strict=True)):
            sums, ids = (logprobs_V + beam.total).topk(min(count, len(logprobs_V)))
            found += [
                (parent, token_id, total) for token_id, total in zip(ids.tolist(), sums.tolist(), strict=True)
            ]
        return sorted(found, key=lambda c: (-c[2], c[0], c[1]))[:count]

    def _over(self, goes_on: Sequence[Continuation], length: int) -> bool:
        if not goes_on:
            return True
        if len(self.hypotheses) < self._beams.width:
            return False
        stopping, penalty = self._beams.early_stopping, self._beams.length_penalty
        if stopping is EarlyStopping.FIRST:
            return True
        at = self._max_tokens if stopping is EarlyStopping.NEVER and penalty > 0 else length
        best: float = goes_on[0].total / at**penalty
        return best <= self.hypotheses[-1].score
