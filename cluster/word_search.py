"""Finds texts by the words of questions alone: a text counts the question's words that it has, rare ones
more."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice

_WORD = re.compile(r"\w+")


def found_by_words(questions: Sequence[str], texts: Sequence[str], count: int) -> list[int]:
    """Numbers of at most ``count`` texts: every question's best one, then every question's second best, and
    so on."""
    words = [set(_WORD.findall(text.lower())) for text in texts]
    found_in = Counter(word for of_one in words for word in of_one)
    rankings = []
    for question in questions:
        asked = set(_WORD.findall(question.lower()))
        scores = [
            sum(math.log(1 + len(texts) / found_in[word]) for word in sorted(asked & of_one))
            for of_one in words
        ]
        rankings.append(sorted(range(len(texts)), key=scores.__getitem__, reverse=True))
    in_turn = dict.fromkeys(i for rank in zip(*rankings, strict=True) for i in rank)
    return list(islice(in_turn, count))
