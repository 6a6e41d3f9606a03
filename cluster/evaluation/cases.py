"""Holds what is asked: cases with documents, a question and what a right answer tells, and tasks of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.evaluation.metrics import Metric


@dataclass(frozen=True, slots=True)
class EvalDocument:
    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class EvalCase:
    """
    name: in its task; answers are kept by it.
    references: each of them is to be told; of each any of its forms will do.
    documents: in the order in which the question finds them; none: it is asked without any.
    evidence: numbers of the documents that hold the answer, where the suite says so; none: any may.
    """

    name: str
    question: str
    references: tuple[tuple[str, ...], ...]
    documents: tuple[EvalDocument, ...] = ()
    evidence: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EvalTask:
    """
    max_tokens: most of an answer.
    grounded: only the documents tell the answer, so that `full` has to beat closed book by them.
    numbers: references are numbers, of which an answer may hold a part.
    """

    name: str
    metric: Metric
    max_tokens: int
    cases: Sequence[EvalCase]
    grounded: bool = True
    numbers: bool = False
