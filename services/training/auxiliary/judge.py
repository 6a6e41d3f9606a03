"""Compares choices of windows, question by question: how likely the reference's answer is, and whether it is
given token by token, when what each chooses is computed anew.

``stored`` chooses nothing, ``random`` any windows, ``attention`` those that the primary attends to most when
it reads everything, and the ceiling those that truly add most. Every other choice is an auxiliary model's.
All but the ceiling, which may stop earlier, take windows until a ratio of the tokens is reached, as
``budget`` does.

Shapes: Q questions, W windows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from services.training.auxiliary.ceiling import best_tokens
from services.training.auxiliary.contexts import SelectionContext
from services.training.auxiliary.counterfactual import Counterfactuals, Forced
from services.training.auxiliary.labels import Floats, LabelledContext
from services.training.twin_request import Ids
from shared.measuring.paired import Clusters, Interval, flip_test, mcnemar, won_back
from shared.selection.grouping import num_asked

STORED, RANDOM, ATTENTION, CEILING = "stored", "random", "attention", "ceiling"
Scores = Callable[[SelectionContext], Sequence[Floats]]
"""By question, a score for every window."""


@dataclass(frozen=True, slots=True)
class JudgedChoice:
    """One question under one choice. ``share``: of the context's tokens that were computed anew."""

    exact: bool
    logprob: float
    share: float


@dataclass(slots=True)
class JudgedChoices:
    """``by_choice``: in the same order for all; ``contexts``: of each question."""

    by_choice: dict[str, list[JudgedChoice]] = field(default_factory=dict)
    contexts: list[int] = field(default_factory=list)

    def exact(self, choice: str) -> Floats:
        return np.array([one.exact for one in self.by_choice[choice]], dtype=np.float64)

    def logprobs(self, choice: str) -> Floats:
        return np.array([one.logprob for one in self.by_choice[choice]], dtype=np.float64)

    def share(self, choice: str) -> float:
        return float(np.mean([one.share for one in self.by_choice[choice]]))


@dataclass(frozen=True, slots=True)
class GapClosed:
    """``ours`` beside ``theirs``. ``closed``: of what the ceiling gives beyond theirs, the share that ours
    gives, by exact answers; ``p``: McNemar's exact test of these; ``logprob_p``: of the answers'
    log-probabilities, their signs flipped."""

    closed: Interval
    p: float
    logprob_p: float


def compare(judged: JudgedChoices, ours: str, theirs: str) -> GapClosed:
    one, other, most = (judged.exact(choice) for choice in (ours, theirs, CEILING))
    closed = Clusters(np.array(judged.contexts)).interval(won_back, one, other, most)
    p = mcnemar(int(((one == 1) & (other == 0)).sum()), int(((one == 0) & (other == 1)).sum()))
    return GapClosed(closed, p, flip_test(judged.logprobs(ours) - judged.logprobs(theirs)))


def judge(
    labelled: Sequence[LabelledContext],
    over: Callable[[LabelledContext], Counterfactuals],
    choices: Mapping[str, Scores],
    ratio: float,
    seed: int,
    on_progress: Callable[[int, int], None],
) -> JudgedChoices:
    """``over``: asks the primary about a context."""
    judged = JudgedChoices({name: [] for name in (STORED, RANDOM, *choices, ATTENTION, CEILING)})
    for number, one in enumerate(labelled):
        on_progress(number, len(labelled))
        asking, context = over(one), one.context
        chosen = _chosen(asking, one, choices, num_asked(ratio, context.num_tokens), f"{seed} {number}")
        wanted = [Forced(i, tokens) for of_choice in chosen.values() for i, tokens in enumerate(of_choice)]
        outcomes = iter(asking.outcomes(wanted))
        for name, of_choice in chosen.items():
            for tokens in of_choice:
                outcome = next(outcomes)
                share = len(tokens) / context.num_tokens
                judged.by_choice[name].append(JudgedChoice(outcome.exact, outcome.logprob, share))
        judged.contexts += [number] * len(one.labels)
    on_progress(len(labelled), len(labelled))
    return judged


def _chosen(
    asking: Counterfactuals, one: LabelledContext, choices: Mapping[str, Scores], num_tokens: int, seed: str
) -> dict[str, list[Ids]]:
    """By choice and question."""
    context, labels = one.context, one.labels
    rng, windows = random.Random(f"{seed} windows"), range(len(context.windows))
    chosen: dict[str, list[Ids]] = {STORED: [() for _ in labels]}
    chosen[RANDOM] = [context.within(rng.sample(windows, len(windows)), num_tokens) for _ in labels]
    by_attention = [of_one.attended_W for of_one in labels]
    scores = {name: score(context) for name, score in choices.items()} | {ATTENTION: by_attention}
    for name, of_questions in scores.items():
        ranked = (np.argsort(-scores_W, kind="stable").tolist() for scores_W in of_questions)
        chosen[name] = [context.within(best_first, num_tokens) for best_first in ranked]
    chosen[CEILING] = best_tokens(asking, context, labels, num_tokens)
    return chosen
