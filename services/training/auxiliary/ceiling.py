"""Chooses windows by what they truly add: the ceiling of what any scores could choose within a number of
tokens.

Greedy: of all windows, and at first of all pairs that were tried, the one is taken with which the answer
becomes likeliest; then the next to it, until the tokens are used up or nothing adds anything. It needs the
answer, so nobody can serve it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from services.training.auxiliary.contexts import SelectionContext
from services.training.auxiliary.counterfactual import Counterfactuals, Forced
from services.training.auxiliary.labels import SelectionLabels
from services.training.twin_request import Ids

_ADDS = 1e-2  # nats
Windows = tuple[int, ...]


@dataclass(slots=True)
class _Climb:
    """Of one question: the windows so far, and the gain that they come to. ``tried``: what is asked next."""

    windows: Windows
    gain: float
    done: bool = False
    tried: list[Windows] = field(default_factory=list)


def best_tokens(
    asking: Counterfactuals, context: SelectionContext, labels: Sequence[SelectionLabels], num_tokens: int
) -> list[Ids]:
    """By question, the primary's tokens of windows that are taken while they are fewer than
    ``num_tokens``."""
    climbs = [_begun(one, num_tokens) for one in labels]
    while any(not climb.done for climb in climbs):
        wanted: list[Forced] = []
        for question, climb in enumerate(climbs):
            climb.tried = [] if climb.done else list(_further(context, climb.windows, num_tokens))
            wanted += (Forced(question, context.tokens_of(windows)) for windows in climb.tried)
        outcomes = iter(asking.outcomes(wanted))
        for climb, one in zip(climbs, labels, strict=True):
            _climb(climb, [next(outcomes).logprob - one.stored for _ in climb.tried])
    return [context.tokens_of(climb.windows) for climb in climbs]


def _begun(labels: SelectionLabels, num_tokens: int) -> _Climb:
    """By what is known already."""
    known: dict[Windows, float] = {(): 0.0}
    if num_tokens > 0:
        known |= {(window,): gain for window, gain in enumerate(labels.gain_W.tolist())}
        known |= zip(map(tuple, labels.pairs_N2.tolist()), labels.pair_gain_N.tolist(), strict=True)
    windows = max(known, key=known.__getitem__)
    return _Climb(windows, known[windows], done=not windows)


def _further(context: SelectionContext, windows: Windows, num_tokens: int) -> Iterator[Windows]:
    if len(context.tokens_of(windows)) < num_tokens:
        others = (window for window in range(len(context.windows)) if window not in windows)
        yield from ((*windows, window) for window in others if context.windows[window])


def _climb(climb: _Climb, gains: Sequence[float]) -> None:
    best = max(range(len(gains)), key=gains.__getitem__, default=None)
    if best is None or gains[best] < climb.gain + _ADDS:
        climb.done = True
    else:
        climb.windows, climb.gain = climb.tried[best], gains[best]
