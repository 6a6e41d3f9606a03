"""Says what is asked of real replicas: which documents there are, and which one each question is about.

Every question is about one document, and its chunks are all of that document's, so that the same ones are
asked for again whatever else is found; which document it is follows a Zipf law. In a second phase a share of
the questions is about documents that nobody asked about before, and nobody will again.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from load_tests.service.arrivals import poisson
from load_tests.service.loads import zipf_weights
from shared.generation.ranges import check_range

WARM, STEADY, NOVEL = "warm", "steady", "novel"


@dataclass(frozen=True, slots=True)
class RealPlan:
    """
    subjects: documents that are asked about again and again, of so many chunks of chunk_tokens each: the
    working set. pool_share: of it, what a replica's engine holds.
    zipf: exponent of how often subjects are asked about. novel_share: of the second phase's questions, those
    about something else.
    rounds: how often each way is measured, every second time in the reverse order, so that a machine that
    becomes slower or faster meets all alike.
    warm, steady, novel: questions of each phase of a round; the first ones come as fast as they are answered,
    and are not counted. rate: the others per second, as a Poisson process.
    num_generated: tokens of an answer.
    link_mb_per_s: KV lies in an S3 server behind a network link that brings so many megabytes (1e6 bytes) a
    second to all replicas, and nodes keep next to nothing: as where it comes from other machines. 0: it lies
    in the node's memory and on its disk.

    Raises:
        InvalidRequest: names the field and its range.
    """

    model: str = "smollm2"
    replicas: int = 2
    subjects: int = 24
    chunks: int = 12
    chunk_tokens: int = 96
    pool_share: float = 0.25
    zipf: float = 0.9
    novel_share: float = 0.25
    rounds: int = 1
    warm: int = 48
    steady: int = 200
    novel: int = 80
    rate: float = 1.5
    num_generated: int = 4
    link_mb_per_s: float = 40.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("replicas", 2, 8),
            ("subjects", 2, 10_000),
            ("chunks", 1, 256),
            ("chunk_tokens", 16, 4096),
            ("pool_share", 0.01, 1),
            ("zipf", 0, 4),
            ("novel_share", 0, 1),
            ("rounds", 1, 100),
            ("warm", 0, 100_000),
            ("steady", 8, 100_000),
            ("novel", 8, 100_000),
            ("rate", 0.01, 1_000),
            ("num_generated", 1, 4096),
            ("link_mb_per_s", 0, 1_000_000),
        ):
            value = getattr(self, name)
            check_range(name, value, least <= value <= most, f"{least} to {most}")  # no NaN is

    @property
    def working_tokens(self) -> int:
        return self.subjects * self.chunks * self.chunk_tokens


SMOKE = RealPlan("demo", subjects=6, chunks=8, warm=6, steady=16, novel=16, rate=4.0, link_mb_per_s=0.0)
"""Whether it runs."""


@dataclass(frozen=True, slots=True)
class PlannedQuestion:
    """``number``: among all; ``place``: in its round. ``document``: its number; those from ``subjects`` on
    are novel."""

    number: int
    place: int
    phase: str
    document: int
    novel: bool


def planned(plan: RealPlan) -> list[list[PlannedQuestion]]:
    """By round; the same for every way of choosing."""
    draw, novel_documents = random.Random(plan.seed), itertools.count(plan.subjects)
    weights = zipf_weights(plan.subjects, plan.zipf)
    phases = [WARM] * plan.warm + [STEADY] * plan.steady + [NOVEL] * plan.novel

    def question(number: int, place: int, phase: str) -> PlannedQuestion:
        novel = phase == NOVEL and draw.random() < plan.novel_share
        about = next(novel_documents) if novel else draw.choices(range(plan.subjects), weights)[0]
        return PlannedQuestion(number, place, phase, about, novel)

    numbers = itertools.count()
    return [
        [question(next(numbers), place, phase) for place, phase in enumerate(phases)]
        for _ in range(plan.rounds)
    ]


def instants_s(plan: RealPlan, questions: Sequence[PlannedQuestion]) -> tuple[float, ...]:
    """At which those of a round come that are counted."""
    return poisson(plan.rate, plan.steady + plan.novel, plan.seed + questions[0].number)


def num_documents(rounds: Iterable[Iterable[PlannedQuestion]], plan: RealPlan) -> int:
    return plan.subjects + sum(question.novel for questions in rounds for question in questions)
