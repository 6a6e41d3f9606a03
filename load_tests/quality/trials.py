"""Draws contexts to ask about, each a function of its number and the seed; names are those that training
never saw."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from services.training.contexts import Context, ContextShape, TrainingQuestion
from services.training.corpus import Worlds
from services.training.cross_chunk import draw_cross_chunk
from services.training.names import Split

QUESTIONS_PER_CONTEXT = 8


@dataclass(frozen=True, slots=True)
class Shapes:
    """From how many and how large passages a context is drawn, bounds included."""

    passages: tuple[int, int] = (4, 6)
    chars: tuple[int, int] = (160, 300)


@dataclass(frozen=True, slots=True)
class Trial:
    """One context and what is asked about it."""

    number: int
    context: Context

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(passage.text for passage in self.context.passages)

    @property
    def questions(self) -> tuple[TrainingQuestion, ...]:
        return self.context.questions


def draw_trial(seed: int, number: int, shapes: Shapes) -> Trial:
    rng = random.Random(f"{seed} quality {number}")
    shape = ContextShape(rng.randint(*shapes.passages), rng.randint(*shapes.chars))
    return Trial(number, draw_cross_chunk(rng, Worlds.load(), shape, Split.HELD_OUT, QUESTIONS_PER_CONTEXT))


def draw_trials(seed: int, num_spread: int, shapes: Shapes) -> Iterator[Trial]:
    """Whole contexts until at least ``num_spread`` questions need evidence from two chunks; the others come
    with them."""
    number = asked = 0
    while asked < num_spread:
        trial = draw_trial(seed, number, shapes)
        yield trial
        asked += sum(is_spread(question) for question in trial.questions)
        number += 1


def is_spread(question: TrainingQuestion) -> bool:
    return len(question.evidence) > 1
