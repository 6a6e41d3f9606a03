"""Makes, from how every mode did in an evaluation, the verdict that mode ``auto`` obeys
(``shared.verdict``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shared.errors import InvalidRequest
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext
from shared.verdict import BY_RATIO, Tally, Verdict

_FULL = (ReuseMode.FULL.value, None)


@dataclass(frozen=True, slots=True)
class Score:
    """One mode, at one ratio where it goes by one, on one kind of question.

    num_correct: right answers. loss_at_most: how many more questions the reference, ``full`` over the whole
    blocks, may answer than it, with certainty; a share. worse: it is certain that these are too many.
    gain_at_least, gain_at_most: the interval of how many more it answers than ``reordered``; shares.
    """

    mode: str
    num_correct: float
    loss_at_most: float
    ratio: float | None = None
    gain_at_least: float = 0.0
    gain_at_most: float = 0.0
    kind: str = ""
    worse: bool = True


def judge(
    scores: Iterable[Score],
    tolerance: float,
    model: str,
    prefix: str,
    encoding: str,
    kv_context: KvContext = KvContext.NONE,
    evidence: Mapping[str, Tally] | None = None,
) -> Verdict:
    """The mode that computes least among those that, on every kind of question, are worse than the
    reference by no more than ``tolerance``: ``reordered``; else another one that recomputes nothing, else
    of those that recompute a ratio the one with the most right answers; else ``full``.

    KV that is computed behind its document may know what none of the retrieved chunks says, so that there
    ``full`` is no upper mark, and recomputing destroys. It is forbidden unless some mode and ratio answers
    significantly more than ``reordered`` on one kind of question, and significantly fewer on none; and where
    no mode is as good as the reference everywhere, ``reordered`` is the verdict if ``full`` answers no more
    than it over all kinds. ``evidence``: see ``Verdict``.

    Raises:
        InvalidRequest: there are no scores to go by, or they show of no mode that it is good enough, and
        not of all that they are not.
    """
    by_way: dict[tuple[str, float | None], list[Score]] = defaultdict(list)
    for score in scores:
        by_way[score.mode, score.ratio].append(score)
    if not by_way:
        raise InvalidRequest("verdict: no question has been asked in every mode yet; run on until one has")
    conditioned = kv_context is not KvContext.NONE
    allowed = {
        way: of_way
        for way, of_way in by_way.items()
        if not conditioned or way[0] not in BY_RATIO or _helps(of_way)
    }
    recompute = any(mode in BY_RATIO for mode, _ in allowed) or not conditioned
    _check_evidence(allowed, tolerance)
    mode, ratio = _best(allowed, tolerance, conditioned)
    return Verdict(
        mode, tolerance, model, prefix, encoding, ratio, kv_context, recompute, dict(evidence or {})
    )


def _best(
    by_way: Mapping[tuple[str, float | None], Sequence[Score]], tolerance: float, conditioned: bool
) -> tuple[ReuseMode, float | None]:
    right = {way: sum(score.num_correct for score in of_way) for way, of_way in by_way.items()}
    fitting = _fitting(by_way, tolerance)
    cheapest, full = (ReuseMode.REORDERED.value, None), (ReuseMode.FULL.value, None)
    by_ratio = [way for way in fitting if way[0] in BY_RATIO]
    others = [way for way in fitting if way not in (*by_ratio, full)]
    if cheapest in fitting:
        return ReuseMode.REORDERED, None
    if others:
        return ReuseMode(max(others, key=lambda way: right[way])[0]), None
    if by_ratio:
        mode, ratio = max(by_ratio, key=lambda way: right[way])
        return ReuseMode(mode), ratio
    if conditioned and cheapest in right and right[cheapest] >= right.get(full, 0.0):
        return ReuseMode.REORDERED, None
    return ReuseMode.FULL, None


def _fitting(
    by_way: Mapping[tuple[str, float | None], Sequence[Score]], tolerance: float
) -> list[tuple[str, float | None]]:
    return [way for way, of_way in by_way.items() if all(s.loss_at_most <= tolerance for s in of_way)]


def _check_evidence(by_way: Mapping[tuple[str, float | None], Sequence[Score]], tolerance: float) -> None:
    reusing = {way: of_way for way, of_way in by_way.items() if way != _FULL}
    open_ways = {way: of_way for way, of_way in reusing.items() if not any(score.worse for score in of_way)}
    if open_ways and not _fitting(reusing, tolerance):
        (mode, ratio), of_way = min(
            open_ways.items(), key=lambda item: max(score.loss_at_most for score in item[1])
        )
        most = max(score.loss_at_most for score in of_way)
        raise InvalidRequest(
            f"verdict: the questions are too few to tell: {mode}{'' if ratio is None else f' {ratio:g}'} "
            f"may lose up to {100 * most:.1f} points, and {100 * tolerance:g} are allowed; ask more, or "
            "raise --tolerance"
        )


def _helps(of_way: Sequence[Score]) -> bool:
    """Recomputing destroys nothing for certain, and wins something for certain."""
    return all(score.gain_at_most >= 0 for score in of_way) and any(
        score.gain_at_least > 0 for score in of_way
    )
