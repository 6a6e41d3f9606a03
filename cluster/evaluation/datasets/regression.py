"""Reads questions without documents, by which it shows whether a model is what it was: MMLU, TriviaQA, GSM8K.
Without documents all modes are one, so they are asked once."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.evaluation.cases import EvalCase, EvalTask
from cluster.evaluation.datasets.records import Format, Record, read_records, read_rows, refuse
from cluster.evaluation.datasets.wanted import WantedCases
from cluster.evaluation.metrics import Metric

MMLU = Format("MMLU", "rows of a question, four choices, and A, B, C or D")
TRIVIAQA = Format("TriviaQA", "Data, each with Question, and Answer with Value and Aliases")
GSM8K = Format("GSM8K", "question, and answer with “#### NUMBER” at its end")
_LETTERS = "ABCD"
_NUMBER = re.compile(r"-?[0-9][0-9,]*(\.[0-9]+)?")


def mmlu_tasks(path: Path, wanted: WantedCases) -> list[EvalTask]:
    """All methods raise ``InvalidRequest``, which names line and field."""
    cases = [_choices(path, place, row) for place, row in read_rows(path, MMLU) if row]
    if not cases:
        refuse(path, "line 1", "", "the file is empty", MMLU)
    return [_task(f"mmlu_{path.stem.removesuffix('_test')}", Metric.CHOICE, 16, cases, wanted)]


def triviaqa_tasks(path: Path, wanted: WantedCases) -> list[EvalTask]:
    """By subspan: whoever answers in a sentence is not wrong."""
    cases = [_trivia(record) for record in read_records(path, TRIVIAQA)]
    return [_task("triviaqa", Metric.SUBSPAN, 32, cases, wanted)]


def gsm8k_tasks(path: Path, wanted: WantedCases) -> list[EvalTask]:
    return [
        _task("gsm8k", Metric.NUMBER, 256, [_sum(record) for record in read_records(path, GSM8K)], wanted)
    ]


def _task(name: str, metric: Metric, max_tokens: int, cases: list[EvalCase], wanted: WantedCases) -> EvalTask:
    drawn = tuple(wanted.drawn(cases))
    return EvalTask(name, wanted.metric or metric, wanted.max_tokens or max_tokens, drawn, grounded=False)


def _choices(path: Path, place: str, row: list[str]) -> EvalCase:
    if len(row) != 2 + len(_LETTERS):
        refuse(path, place, "", f"has {len(row)} columns, not {2 + len(_LETTERS)}", MMLU)
    question, *choices, right = row
    if right not in _LETTERS or len(right) != 1:
        refuse(path, place, "column 6", f"must be A, B, C or D, got {right!r}", MMLU)
    told = "\n".join(f"{letter}. {choice}" for letter, choice in zip(_LETTERS, choices, strict=True))
    return EvalCase(place, f"{question}\n{told}\nAnswer with the letter of the right choice.", ((right,),))


def _trivia(record: Record) -> EvalCase:
    answer = record.nested("Answer")
    forms = [answer.text("Value"), *(answer.texts("Aliases") if answer.values.get("Aliases") else ())]
    told = tuple(dict.fromkeys(form for form in forms if form.strip()))
    return EvalCase(record.name, record.text("Question"), (told,))


def _sum(record: Record) -> EvalCase:
    _, marked, number = record.text("answer").rpartition("####")
    number = number.strip()
    if not marked or not _NUMBER.fullmatch(number):
        record.refuse("answer", "does not end with “#### NUMBER”")
    return EvalCase(record.name, record.text("question"), ((number,),))
