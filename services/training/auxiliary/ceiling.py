"""Chooses windows by what they truly add: the ceiling of what any scores could choose within a number of
tokens.

Greedy: of all windows, and at first of all pairs that were tried, the one is taken with which the answer
becomes likeliest; then the next to it, until the tokens are used up or nothing adds anything. It needs the
answer, so nobody can serve it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.training.auxiliary.contexts import SelectionContext
from services.training.auxiliary.counterfactual import Counterfactuals, Forced
from services.training.auxiliary.labels import SelectionLabels
from services.training.twin_request import Ids

_ADDS = 1e-2  # nats
Windows = tuple[int, ...]


@dataclass(slots=True)
class _Climb:
    """Of one question: the windows so far, and the gain that they come to."""

    windows: Windows = ()
    gain: float = 0.0
    done: bool = False

    def take(self, tried: Sequence[Windows], gains: Sequence[float]) -> bool:
        """Takes the best of what was tried, if that adds anything."""
        best = max(range(len(gains)), key=gains.__getitem__, default=None)
        if best is None or gains[best] < self.gain + _ADDS:
            return False
        self.windows, self.gain = tried[best], gains[best]
        return True


def best_tokens(
    asking: Counterfactuals, context: SelectionContext, labels: Sequence[SelectionLabels], num_tokens: int
) -> list[Ids]:
    """By question, the primary's tokens of windows that are taken while they are fewer than
    ``num_tokens``."""
    climbs = [_begun(one) if num_tokens > 0 else _Climb(done=True) for one in labels]
    while any(not climb.done for climb in climbs):
        tried = [[] if climb.done else list(_further(context, climb.windows, num_tokens)) for climb in climbs]
        outcomes = iter(
            asking.outcomes(
                [
                    Forced(question, context.tokens_of(windows))
                    for question, of_one in enumerate(tried)
                    for windows in of_one
                ]
            )
        )
        for climb, of_one, one in zip(climbs, tried, labels, strict=True):
            climb.done = not climb.take(of_one, [next(outcomes).logprob - one.stored for _ in of_one])
    return [context.tokens_of(climb.windows) for climb in climbs]


def _begun(labels: SelectionLabels) -> _Climb:
    """By what is known already: with a window, or with the pair that adds something to it."""
    climb = _Climb()
    climb.take([(window,) for window in range(len(labels.gain_W))], labels.gain_W.tolist())
    climb.take([(one, other) for one, other in labels.pairs_N2.tolist()], labels.pair_gain_N.tolist())
    climb.done = not climb.windows
    return climb


def _further(context: SelectionContext, windows: Windows, num_tokens: int) -> Iterator[Windows]:
    if len(context.tokens_of(windows)) < num_tokens:
        others = (window for window in range(len(context.windows)) if window not in windows)
        yield from ((*windows, window) for window in others if context.windows[window])
