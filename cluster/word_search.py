"""Finds texts by the words of questions alone: a text counts the question's words that it has, rare ones
more."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice, zip_longest

_WORD = re.compile(r"\w+")


def found_by_words(
    questions: Sequence[str], texts: Sequence[str], count: int, answers: Sequence[str] = ()
) -> list[int]:
    """Numbers of at most ``count`` texts: every question's best one, then every question's second best, and
    so on. ``answers``: of the questions, where they are known; texts that say a question's come first, then
    those with most words of both."""
    lower = [text.lower() for text in texts]
    words = [set(_WORD.findall(text)) for text in lower]
    found_in = Counter(word for of_one in words for word in of_one)
    rankings = []
    for question, answer in zip_longest(questions, answers):
        asked = set(_WORD.findall(f"{question} {answer or ''}".lower()))
        scores = [
            (
                answer is not None and answer.lower() in text,
                sum(math.log(1 + len(texts) / found_in[word]) for word in sorted(asked & of_one)),
            )
            for text, of_one in zip(lower, words, strict=True)
        ]
        rankings.append(sorted(range(len(texts)), key=scores.__getitem__, reverse=True))
    in_turn = dict.fromkeys(i for rank in zip(*rankings, strict=True) for i in rank)
    return list(islice(in_turn, count))
