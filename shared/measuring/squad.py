"""Scores an answer as SQuAD does (Rajpurkar et al., 2016): lower case, without punctuation, articles and
needless white space."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class SquadScore:
    """Of the expected answer that fits best. exact: the answer is it and nothing else. contains: it stands in
    the answer as whole words. f1: of the words that both have."""

    exact: bool
    contains: bool
    f1: float


def normalized(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def score(text: str, expected: Sequence[str]) -> SquadScore:
    ours = normalized(text)
    theirs = [normalized(answer) for answer in expected]
    return SquadScore(
        ours in theirs,
        any(f" {answer} " in f" {ours} " for answer in theirs if answer),
        max(f1(ours.split(), answer.split()) for answer in theirs),
    )


def f1(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over words, or whatever a text is parted into."""
    shared = (Counter(ours) & Counter(theirs)).total()
    if not shared:
        return float(ours == theirs)  # two empty ones are alike
    precision, recall = shared / len(ours), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)
