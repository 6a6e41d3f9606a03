"""A request of questions, and what answers them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from shared.engine.decoding.beams import BeamSearch
from shared.engine.decoding.choice import Thought
from shared.engine.decoding.sampling import Draw
from shared.engine.decoding.text import TextStream
from shared.engine.jobs.context import ContextJob, Grower
from shared.engine.jobs.job import Computed
from shared.engine.kv.segment import Branch
from shared.generation.asked import SamplingParams


@dataclass(slots=True, eq=False)
class Answer(Grower):
    """One sample: the private branch of its generated tokens."""

    question: int
    sample: int
    branch: Branch
    text: TextStream
    params: SamplingParams
    whole_text: str = ""
    num_generated: int = 0
    total_logprob: float = 0.0

    @property
    def score(self) -> float:
        """Mean log-probability of its tokens."""
        return self.total_logprob / self.num_generated

    def draw(self) -> Draw:
        return Draw(self.params, self.sample, self.num_generated)

    def add(self, text: str, logprob: float) -> None:
        self.whole_text += text
        self.num_generated += 1
        self.total_logprob += logprob


@dataclass(slots=True, eq=False)
class Beam(Grower):
    """One running beam: a branch on that of the beam it came from. ``logprobs_V``: of its next token, once
    they are known."""

    group: BeamGroup
    branch: Branch
    logprobs_V: torch.Tensor | None = None


@dataclass(slots=True, eq=False)
class BeamGroup:
    """The search of one question. It does not know its beams: they know it, and die with their KV when nobody
    else does."""

    question: int
    search: BeamSearch


class Answers(Protocol):
    """``shared.engine.decoding.answer_lifecycle``."""

    def start(self, job: GenerateJob) -> None: ...
    def on_computed(self, job: GenerateJob, owner: Grower, computed: Computed) -> None: ...


@dataclass(slots=True, eq=False)
class GenerateJob(ContextJob):
    """``answers`` grow, ``thoughts`` are complete (question → sample → thought); ``num_open`` answers are to
    come."""

    lead: Answers = field(kw_only=True)
    answers: list[Answer | Beam] = field(default_factory=list)
    thoughts: defaultdict[int, dict[int, Thought]] = field(default_factory=lambda: defaultdict(dict))

    def start(self) -> None:
        self.lead.start(self)

    def on_computed(self, owner: Grower, computed: Computed) -> None:
        self.lead.on_computed(self, owner, computed)

    @property
    def growing(self) -> Sequence[Answer | Beam]:
        return self.answers

    def beams(self, group: BeamGroup) -> list[Beam]:
        """In the order of ``group.search.running``."""
        return [answer for answer in self.answers if isinstance(answer, Beam) and answer.group is group]
