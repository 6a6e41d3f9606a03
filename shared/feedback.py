"""Ratings of answers: the values that the gateway and its clients share."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Rating(enum.StrEnum):
    """NONE: a comment alone."""

    NONE = "none"
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Feedback:
    """``request_id``: of the answer. ``question``: index of the one that is meant, where several were
    asked."""

    request_id: str
    rating: Rating = Rating.NONE
    comment: str = ""
    question: int = 0


@dataclass(frozen=True, slots=True)
class RatedAnswer:
    """``asked``: the question's text. ``reuse``: the mode that was really used; empty: nothing was generated.
    ``ratio``: share of the context's tokens that was computed anew because the mode chose them.
    ``document_ids``: of the chunks, one each. ``rated_s``: seconds since 1970."""

    request_id: str
    question: int
    rating: Rating
    comment: str
    collection: str
    asked: str
    answer: str
    reuse: str
    ratio: float
    chunk_ids: tuple[str, ...]
    document_ids: tuple[str, ...]
    rated_s: float
