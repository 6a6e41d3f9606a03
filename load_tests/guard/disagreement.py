"""Finds, for pairs of cheap ways of answering, how many of one's losses their disagreement would catch, and
at how many false alarms.

A *loss* is a question that the reference (``full`` over the whole blocks) answers and the served way does
not. An *alarm* is raised where the words of the two answers have less in common than a threshold; on a
question without a loss it is false. Every threshold is a point of the pair's curve.

Shapes: Q questions.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cluster.gate.ledger import GradedAnswer
from cluster.gate.modes import CLOSED_BOOK, FULL, WHOLE_BLOCKS
from shared.errors import InvalidRequest

MOST_ALARMS, LEAST_CAUGHT = 0.15, 0.60
_NOT_CHEAP = (CLOSED_BOOK.label, WHOLE_BLOCKS.label, FULL.label)
_WORD = re.compile(r"\w+")
Question = tuple[str, int, int]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Guard:
    """``served`` and a second way of answering beside it. ``caught``: share of the losses that raise an
    alarm, at the threshold that catches most with at most ``MOST_ALARMS`` false ``alarms`` (share of the
    other questions); ``below``: that threshold, of the words in common. ``differing``: both shares where
    every difference of words is an alarm."""

    served: str
    second: str
    num_questions: int
    num_losses: int
    caught: float
    alarms: float
    below: float
    differing: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Answers:
    """Of one way, by question."""

    right: Mapping[Question, bool]
    words: Mapping[Question, frozenset[str]]


def read_answers(path: Path) -> list[GradedAnswer]:
    """
    Raises:
        InvalidRequest: it is no file of answers of ``load_tests.quality``.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[1:-1]
        return [GradedAnswer(**answer) for line in lines for answer in json.loads(line)]
    except (OSError, ValueError, TypeError) as error:
        raise InvalidRequest(
            f"--answers: {path} is no file of answers of load_tests.quality: {error}"
        ) from None


def by_mode(answers: Iterable[GradedAnswer], kinds: Sequence[str] = ()) -> dict[str, Answers]:
    """``kinds`` empty: all that have an answer."""
    right: dict[str, dict[Question, bool]] = defaultdict(dict)
    words: dict[str, dict[Question, frozenset[str]]] = defaultdict(dict)
    for answer in answers:
        if answer.kind in kinds or (not kinds and "unanswerable" not in answer.kind):
            key = answer.kind, answer.context, answer.question
            right[answer.mode][key] = answer.correct
            words[answer.mode][key] = frozenset(_WORD.findall(answer.text.casefold()))
    return {mode: Answers(right[mode], words[mode]) for mode in right}


def guards(modes: Mapping[str, Answers]) -> Iterator[Guard]:
    """Of every pair of cheap ways, either of them served, that was asked the same questions.

    Raises:
        InvalidRequest: the reference was not asked.
    """
    if WHOLE_BLOCKS.label not in modes:
        raise InvalidRequest(f"--answers: holds no answers of {WHOLE_BLOCKS.label}, the reference")
    reference = modes[WHOLE_BLOCKS.label].right
    cheap = [mode for mode in modes if mode not in _NOT_CHEAP]
    for served in cheap:
        for second in cheap:
            common = sorted(reference.keys() & modes[served].right.keys() & modes[second].right.keys())
            if served != second and common:
                yield _guard(served, second, modes, reference, common)


def curve(loss_Q: Bools, in_common_Q: Floats) -> list[tuple[float, float, float]]:
    """(threshold, share of the losses caught, share of the others that raise a false alarm), from the
    strictest threshold on."""
    points = []
    for threshold in sorted({*in_common_Q.tolist(), 1.01}):
        alarm_Q = in_common_Q < threshold
        points.append((threshold, _share(alarm_Q, loss_Q), _share(alarm_Q, ~loss_Q)))
    return points


def _guard(
    served: str,
    second: str,
    modes: Mapping[str, Answers],
    reference: Mapping[Question, bool],
    common: Sequence[Question],
) -> Guard:
    ours, others = modes[served], modes[second].words
    loss_Q = np.array([reference[one] and not ours.right[one] for one in common])
    in_common_Q = np.array([_in_common(ours.words[one], others[one]) for one in common])
    points = curve(loss_Q, in_common_Q)
    below, caught, alarms = max(
        (point for point in points if point[2] <= MOST_ALARMS), key=lambda point: point[1]
    )
    differing_Q = in_common_Q < 1
    return Guard(
        served,
        second,
        len(common),
        int(loss_Q.sum()),
        caught,
        alarms,
        below,
        (_share(differing_Q, loss_Q), _share(differing_Q, ~loss_Q)),
    )


def _in_common(ours: frozenset[str], others: frozenset[str]) -> float:
    """F1 of the words."""
    both = len(ours) + len(others)
    return 2 * len(ours & others) / both if both else 1.0


def _share(alarm_Q: Bools, of_Q: Bools) -> float:
    return float(alarm_Q[of_Q].mean()) if of_Q.any() else 0.0
