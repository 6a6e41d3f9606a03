"""Measures how far two answers to a question say the same."""

from __future__ import annotations

from shared.measuring.squad import f1, normalized


def agreement(question: str, ours: str, theirs: str) -> float:
    """F1 of their words, as SQuAD counts them, without those of the question, which right and wrong answers
    repeat: 1 where they say the same, 0 where they have nothing in common."""
    asked = set(normalized(question).split())
    said = ([word for word in normalized(text).split() if word not in asked] for text in (ours, theirs))
    return f1(*said)
