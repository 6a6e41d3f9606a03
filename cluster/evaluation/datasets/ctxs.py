"""Reads questions with retrieved passages, ``ctxs``: CacheBlend's inputs (`musique_s.json`, `wikimqa_s.json`)
and NQ-open with distractors ("lost in the middle", Liu et al., 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cluster.evaluation.cases import EvalCase, EvalDocument, EvalTask
from cluster.evaluation.datasets.records import Format, Record, read_records
from cluster.evaluation.datasets.wanted import WantedCases
from cluster.evaluation.metrics import Metric

CTXS = Format("a file of ctxs", "question, answers, and ctxs with title and text")
_F1_TOKENS, _SUBSPAN_TOKENS = 32, 100


def ctxs_tasks(path: Path, wanted: WantedCases) -> list[EvalTask]:
    """By F1 as CacheBlend, or, where passages say which is the right one, by subspan as NQ-open with
    distractors.

    Raises:
        InvalidRequest: names line and field.
    """
    records = list(read_records(path, CTXS))
    distractors = any("isgold" in passage.values for passage in records[0].records("ctxs"))
    metric, max_tokens = (Metric.SUBSPAN, _SUBSPAN_TOKENS) if distractors else (Metric.F1, _F1_TOKENS)
    return [
        EvalTask(
            path.name.partition(".")[0],
            wanted.metric or metric,
            wanted.max_tokens or max_tokens,
            tuple(map(_case, wanted.drawn(records))),
        )
    ]


def _case(record: Record) -> EvalCase:
    passages = record.records("ctxs")
    if not passages:
        record.refuse("ctxs", "is empty")
    documents = tuple(
        EvalDocument(passage.text("text"), str(passage.values.get("title") or "")) for passage in passages
    )
    answers = [form for group in record.references("answers") for form in group]
    return EvalCase(record.name, record.text("question"), (tuple(answers),), documents, _evidence(passages))


def _evidence(passages: Sequence[Record]) -> tuple[int, ...]:
    """Those that are said to be right; else those that are said to hold the answer."""
    for field in ("isgold", "hasanswer"):
        if found := tuple(i for i, passage in enumerate(passages) if passage.values.get(field) is True):
            return found
    return ()
