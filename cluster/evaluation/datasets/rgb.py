"""Reads RGB (Chen et al., 2024, arXiv 2309.01431): `en.json`, `en_int.json`, `en_fact.json` and the same in
Chinese. Passages of a case are chosen and mixed as its authors' `evalue.py` does.

What a file is shows in its fields: lists of lists as ``positive`` are integration, ``positive_wrong`` is the
counterfactual part. Of the plain part noise robustness and, with noise alone, rejection are asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from cluster.evaluation.cases import EvalCase, EvalDocument, EvalTask
from cluster.evaluation.datasets.records import Format, Record, read_records
from cluster.evaluation.datasets.wanted import WantedCases
from cluster.evaluation.metrics import Metric, is_chinese

RGB = Format("RGB", "id, query, answer, positive, negative, and positive_wrong in its counterfactual part")
_MAX_TOKENS = 64
_REJECT = (
    "If the documents do not contain the answer, say: I can not answer the question because of the "
    "insufficient information in documents. ",
    "如果文档中的信息不包含答案，请回答：文档信息不足，因此我无法基于提供的文档回答该问题。",
)
_FACTS = (
    "If documents contradict the facts, say: There are factual errors in the provided documents. Then give "
    "the right answer. ",
    "如果文档中存在与事实不一致的错误，请先回答：提供文档的文档存在事实性错误。然后给出正确答案。",
)


def rgb_tasks(path: Path, wanted: WantedCases) -> list[EvalTask]:
    """
    Raises:
        InvalidRequest: names line and field.
    """
    records = list(read_records(path, RGB, "id"))
    name = f"rgb_{path.name.partition('.')[0]}"
    if records[0].has("positive_wrong"):
        return _counterfactual(name, records, wanted)
    if _is_integration(records[0]):
        return [_integration(name, records, noise, wanted) for noise in wanted.noise]
    return [
        *(_noise(name, records, noise, wanted) for noise in wanted.noise),
        _rejection(name, records, wanted),
    ]


def _noise(name: str, records: Sequence[Record], noise: float, wanted: WantedCases) -> EvalTask:
    def case(record: Record) -> EvalCase:
        good, bad = record.texts("positive"), _negatives(record)
        num_bad = min(math.ceil(wanted.passages * noise), len(bad))
        num_good = min(wanted.passages - num_bad, len(good))
        num_bad = wanted.passages - num_good
        return _case(record, wanted, good[:num_good], bad[:num_bad])

    return _task(f"{name}_noise_{noise:g}", Metric.ALL_TOLD, records, case, wanted)


def _rejection(name: str, records: Sequence[Record], wanted: WantedCases) -> EvalTask:
    def case(record: Record) -> EvalCase:
        return _case(record, wanted, [], _negatives(record)[: wanted.passages], _REJECT)

    return _task(f"{name}_rejection", Metric.REJECTION, records, case, wanted, grounded=False)


def _integration(name: str, records: Sequence[Record], noise: float, wanted: WantedCases) -> EvalTask:
    """One passage for each part of the answer, then more of them in turn, as far as noise leaves places."""

    def case(record: Record) -> EvalCase:
        rng = wanted.rng(f"{record.name} parts")
        parts = [rng.sample(part, len(part)) for part in map(list, record.groups("positive"))]
        in_turn = [one for row in zip_longest(*parts) for one in row if one is not None]
        num_good = max(len(parts), wanted.passages - math.ceil(wanted.passages * noise))
        good = in_turn[:num_good]
        return _case(record, wanted, good, _negatives(record)[: max(0, wanted.passages - len(good))])

    return _task(f"{name}_integration_noise_{noise:g}", Metric.ALL_TOLD, records, case, wanted)


def _counterfactual(name: str, records: Sequence[Record], wanted: WantedCases) -> list[EvalTask]:
    """All passages that tell the answer tell a wrong one. The right one is to be known, or the error to be
    told."""

    def case(record: Record) -> EvalCase:
        wrong = record.texts("positive_wrong")
        rng = wanted.rng(f"{record.name} wrong")
        chosen = rng.sample(wrong, min(len(wrong), wanted.passages))
        return _case(record, wanted, chosen, _negatives(record)[: wanted.passages - len(chosen)], _FACTS)

    return [
        _task(f"{name}_{what}", metric, records, case, wanted, grounded=False)
        for what, metric in (("counterfactual", Metric.ALL_TOLD), ("error_detection", Metric.ERROR_TOLD))
    ]


def _task(
    name: str,
    metric: Metric,
    records: Sequence[Record],
    case: Callable[[Record], EvalCase],
    wanted: WantedCases,
    grounded: bool = True,
) -> EvalTask:
    cases = tuple(map(case, wanted.drawn(records)))
    return EvalTask(name, wanted.metric or metric, wanted.max_tokens or _MAX_TOKENS, cases, grounded)


def _case(
    record: Record,
    wanted: WantedCases,
    good: Sequence[str],
    bad: Sequence[str],
    instruction: tuple[str, str] = ("", ""),
) -> EvalCase:
    """``good``: tell the answer."""
    passages = [*((text, True) for text in good), *((text, False) for text in bad)]
    wanted.rng(f"{record.name} order").shuffle(passages)
    question = record.text("query")
    return EvalCase(
        record.name,
        f"{instruction[is_chinese(question)]}{question}",
        record.references("answer"),
        tuple(EvalDocument(text) for text, _ in passages if text.strip()),
        tuple(_evidence(passages)),
    )


def _evidence(passages: Sequence[tuple[str, bool]]) -> Iterator[int]:
    filled = [told for text, told in passages if text.strip()]
    return (i for i, told in enumerate(filled) if told)


def _negatives(record: Record) -> list[str]:
    return record.texts("negative") if record.values.get("negative") else []


def _is_integration(record: Record) -> bool:
    positive = record.values.get("positive")
    return isinstance(positive, list) and bool(positive) and isinstance(positive[0], list)
