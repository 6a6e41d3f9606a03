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

Equal sums go to the beam with the better rank, then to the smaller token id.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from shared.engine.decoding.draws import Ranked
from shared.generation.asked import Beams, EarlyStopping


@dataclass(frozen=True, slots=True)
class Step:
    """One token of a hypothesis, and what it was chosen among."""

    token_id: int
    logprob: float
    top_logprobs: Ranked = ()


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

    @property
    def num_ranked(self) -> int:
        """Of a beam's next tokens: enough to tell, and so many that ``width`` of them do not end."""
        return max(self._num_candidates, self._top_logprobs)

    @property
    def _num_candidates(self) -> int:
        return self._beams.width * max(2, 1 + len(self._eos_ids))

    def advance(self, ranked: Sequence[Ranked]) -> list[Continuation]:
        """``ranked``: ``num_ranked`` next tokens of each running beam, or the whole vocabulary. The beams
        that run from here on, best first; none: it is over."""
        width, length = self._beams.width, len(self.running[0].steps) + 1
        goes_on: list[Continuation] = []
        for rank, (parent, token_id, logprob, total) in enumerate(self._candidates(ranked)):
            step = Step(token_id, logprob, ranked[parent][: self._top_logprobs])
            steps = (*self.running[parent].steps, step)
            ended = token_id in self._eos_ids
            if not ended and length < self._max_tokens:
                goes_on.append(Continuation(parent, steps, total))
            elif rank < width:
                self.hypotheses.append(Hypothesis(steps, total / length**self._beams.length_penalty, ended))
        self.hypotheses = sorted(self.hypotheses, key=lambda h: -h.score)[:width]
        self.running = [] if self._over(goes_on, length) else goes_on[:width]
        return self.running

    def _candidates(self, ranked: Sequence[Ranked]) -> list[tuple[int, int, float, float]]:
        """(beam, token, its log-probability, sum) of the best continuations, best first. Sums are those of
        float32."""
        found = []
        for parent, (best, beam) in enumerate(zip(ranked, self.running, strict=True)):
            sums = np.array([logprob for _, logprob in best], np.float32) + np.float32(beam.total)
            found += [(parent, *one, total) for one, total in zip(best, sums.tolist(), strict=True)]
        return sorted(found, key=lambda c: (-c[3], c[0], c[1]))[: self._num_candidates]

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
