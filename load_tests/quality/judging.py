"""From findings to the verdict that mode ``auto`` obeys (``shared.verdict``)."""

from __future__ import annotations

from collections.abc import Sequence

from load_tests.quality.findings import REORDERED, Finding
from shared.errors import InvalidRequest
from shared.generation.modes import ReuseMode
from shared.verdict import BY_RATIO, Verdict


def judge(
    found: Sequence[Finding], tolerance: float, ratio: float, model: str, prefix: str, encoding: str
) -> Verdict:
    """The mode that computes least among those that, on every kind of question, are worse than ``full`` by no
    more than ``tolerance``, the whole interval considered: ``reordered``; else of the modes that recompute a
    ratio the one with the most right answers; else ``full``.

    Raises:
        InvalidRequest: there are no findings to go by.
    """
    if not found:
        raise InvalidRequest("--verdict: no question has been asked in every mode yet; run on until one has")
    fitting = {
        row.mode: sum(_correct(finding, row.mode) * finding.num_questions for finding in found)
        for row in found[0].rows
        if all(_loss_at_most(finding, row.mode) <= tolerance for finding in found)
    }
    by_ratio = [mode for mode in BY_RATIO if mode in fitting]
    if REORDERED in fitting:
        return Verdict(ReuseMode.REORDERED, tolerance, model, prefix, encoding)
    if by_ratio:
        return Verdict(
            max(by_ratio, key=lambda mode: fitting[mode]), tolerance, model, prefix, encoding, ratio
        )
    return Verdict(ReuseMode.FULL, tolerance, model, prefix, encoding)


def _correct(finding: Finding, mode: str) -> float:
    return next(row.correct.value for row in finding.rows if row.mode == mode)


def _loss_at_most(finding: Finding, mode: str) -> float:
    return -next(row.against_full.low for row in finding.rows if row.mode == mode)
