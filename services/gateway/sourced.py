"""Finds the sources of what was generated."""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.citations import Citable
from shared.answer import AnswerText
from shared.generation.told import BranchDoneEvent
from shared.search import SearchHit


class Sourced:
    """Of answers to ``questions`` over a context. How long that takes is up to what callers bring along, so
    it is not for the event loop. ``reuses``: stored KV may be used."""

    def __init__(self, questions: Sequence[str], hits: Sequence[SearchHit], reuses: bool) -> None:
        self._questions, self._hits, self._reuses = questions, hits, reuses
        self._citable: Citable | None = None

    def text(self, end: BranchDoneEvent, before: str) -> AnswerText:
        """``before``: what the branch has told."""
        whole, question = before + end.text, self._questions[end.question]
        self._citable = self._citable or Citable(self._hits)
        citations = self._citable.cite(whole, question, self._reuses)
        return AnswerText(end.question, end.sample, whole, end.finish_reason, citations, end.score)
