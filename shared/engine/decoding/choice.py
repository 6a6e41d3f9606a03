"""Chooses the answer among several finished thoughts on one question. Pure; ties are decided by the order of
the thoughts.

MEAN_LOGPROB  the thought whose tokens have the best mean log-probability.
MAJORITY      the final answer of a thought is the first line behind its last marker; without the marker in it, it has none; with an
              empty marker, it is the whole text. Final answers that are equal once normalised (case, white
              space and the punctuation around them do not count) vote together. The first thought of the
              biggest group is chosen, of equally big ones of the group that appeared first. If nobody has a
              final answer, the rule is MEAN_LOGPROB.
"""  # noqa: E501

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

from shared.generation.asked import Choice, ChoiceRule
from shared.generation.told import ChosenEvent


@dataclass(frozen=True, slots=True)
class Thought:
    """``score``: mean log-probability."""

    text: str
    score: float


def choose(question: int, thoughts: Sequence[Thought], choice: Choice) -> ChosenEvent:
    """``thoughts``: at least one, by sample."""
    if choice.rule is ChoiceRule.MAJORITY:
        groups: dict[str, list[int]] = {}
        for sample, thought in enumerate(thoughts):
            answer = final_answer(thought.text, choice.marker)
            if answer:
                groups.setdefault(answer, []).append(sample)
        if groups:
            # max takes the first of equals
            answer, samples = max(groups.items(), key=lambda group: len(group[1]))
            return ChosenEvent(question, samples[0], answer, len(samples))
    best = max(range(len(thoughts)), key=lambda sample: thoughts[sample].score)
    return ChosenEvent(question, best)


def final_answer(text: str, marker: str) -> str:
    """Normalised; empty if there is none."""
    if marker:
        _, found, behind = text.rpartition(marker)
        text = behind.strip().partition("\n")[0] if found else ""
    return " ".join(text.casefold().split()).strip(string.punctuation + string.whitespace)
