"""Reads LongBench's question answering (Bai et al., 2024, arXiv 2308.14508): MuSiQue, 2WikiMQA, HotpotQA,
DuReader and the others of their kind, one file each. Contexts are parted where their passages begin."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cluster.evaluation.cases import EvalCase, EvalDocument, EvalTask
from cluster.evaluation.datasets.records import Format, Record, read_records
from cluster.evaluation.datasets.wanted import WantedCases
from cluster.evaluation.metrics import Metric

LONGBENCH = Format("LongBench", "input, context, answers and dataset")
_PASSAGE = re.compile(r"^(?:Passage ?\d+ ?[:：]|文章 ?\d+ ?[:：]?)[ \t]*$", re.MULTILINE)
_LONGEST_TITLE = 120


@dataclass(frozen=True, slots=True)
class LongBenchRow:
    """As its `dataset2metric` and `dataset2maxlen` have it."""

    metric: Metric
    max_tokens: int


_ROWS = {
    "musique": LongBenchRow(Metric.F1, 32),
    "2wikimqa": LongBenchRow(Metric.F1, 32),
    "hotpotqa": LongBenchRow(Metric.F1, 32),
    "dureader": LongBenchRow(Metric.ROUGE_L_ZH, 128),
    "multifieldqa_en": LongBenchRow(Metric.F1, 64),
    "multifieldqa_zh": LongBenchRow(Metric.F1_ZH, 64),
    "narrativeqa": LongBenchRow(Metric.F1, 128),
    "qasper": LongBenchRow(Metric.F1, 128),
}


def longbench_tasks(path: Path, wanted: WantedCases) -> list[EvalTask]:
    """
    Raises:
        InvalidRequest: names line and field.
    """
    records = list(read_records(path, LONGBENCH, "_id"))
    by_name: dict[str, list[Record]] = {}
    for record in records:
        by_name.setdefault(record.text("dataset"), []).append(record)
    return [_task(name, of_it, wanted) for name, of_it in by_name.items()]


def _task(name: str, records: list[Record], wanted: WantedCases) -> EvalTask:
    row = _ROWS.get(name.removesuffix("_e"))
    if row is None:
        records[0].refuse("dataset", f"{name!r} is not one of {', '.join(_ROWS)}")
    return EvalTask(
        f"longbench_{name}",
        wanted.metric or row.metric,
        wanted.max_tokens or row.max_tokens,
        tuple(map(_case, wanted.drawn(records))),
    )


def _case(record: Record) -> EvalCase:
    references = (tuple(record.texts("answers")),)
    return EvalCase(record.name, record.text("input"), references, passages_of(record.text("context")))


def passages_of(context: str) -> tuple[EvalDocument, ...]:
    """A document for each passage, with its first line as its title; the whole where none begins."""
    parts = [part.strip() for part in _PASSAGE.split(context)]
    if len(parts) == 1:
        return (EvalDocument(parts[0]),)
    return tuple(EvalDocument(part, _title(part)) for part in parts if part)


def _title(passage: str) -> str:
    first, _, rest = passage.partition("\n")
    title = re.sub(r"^标题[:：]", "", first).strip()
    return title if rest.strip() and len(title) <= _LONGEST_TITLE else ""
