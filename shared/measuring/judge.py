"""Makes, from how every mode did in an evaluation, the verdict that mode ``auto`` obeys
(``shared.verdict``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from shared.errors import InvalidRequest
from shared.generation.modes import ReuseMode
from shared.verdict import BY_RATIO, Verdict


@dataclass(frozen=True, slots=True)
class Score:
    """One mode on one kind of question.

    num_correct: right answers. loss_at_most: how many more questions ``full`` may answer than it, the whole
    interval considered; a share.
    """

    mode: str
    num_correct: float
    loss_at_most: float


def judge(
    scores: Iterable[Score], tolerance: float, ratio: float, model: str, prefix: str, encoding: str
) -> Verdict:
    """The mode that computes least among those that, on every kind of question, are worse than ``full`` by no
    more than ``tolerance``: ``reordered``; else of the modes that recompute a ratio the one with the most
    right answers; else ``full``.

    Raises:
        InvalidRequest: there are no scores to go by.
    """
    by_mode = defaultdict(list)
    for score in scores:
        by_mode[score.mode].append(score)
    if not by_mode:
        raise InvalidRequest("--verdict: no question has been asked in every mode yet; run on until one has")
    fitting = {
        mode: sum(score.num_correct for score in of_mode)
        for mode, of_mode in by_mode.items()
        if all(score.loss_at_most <= tolerance for score in of_mode)
    }
    by_ratio = [mode for mode in BY_RATIO if mode in fitting]
    cheapest = ReuseMode.REORDERED
    if cheapest in fitting:
        return Verdict(cheapest, tolerance, model, prefix, encoding)
    if by_ratio:
        best = max(by_ratio, key=lambda mode: fitting[mode])
        return Verdict(best, tolerance, model, prefix, encoding, ratio)
    return Verdict(ReuseMode.FULL, tolerance, model, prefix, encoding)
