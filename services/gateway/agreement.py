"""Counts how far answers by one verdict agree with those of the reference, and says when that is certainly
less than it was at the gate.

Answers may differ where both are right or both are wrong, so what agreement there should be is what the gate
saw when it made the verdict. After every answer its test (``shared.measuring.sequential``) is asked whether
the mean over all questions lies below that by more than the tolerance: while it does not, the chance that it
ever says so is at most alpha, in each window of questions. A window begins anew, so that what has gone well
for long does not hide what goes wrong now.
"""

from __future__ import annotations

from statistics import fmean

import numpy as np

from services.gateway.config import ShadowConfig
from shared.measuring.agreement import agreement
from shared.measuring.sequential import log_threshold, worse_at_most, worse_by_more


class AgreementMonitor:
    """``expected``: at the gate; None: nobody knows, and nothing is too little. ``num_judged``: in all
    windows."""

    def __init__(self, config: ShadowConfig, expected: float | None) -> None:
        self.num_judged = 0
        self._config = config
        self._expected = expected
        self._losses: list[float] = []  # agreement - 1, of this window
        self._known: set[int] = set()

    @property
    def least(self) -> float | None:
        """That is tolerated."""
        return None if self._expected is None else self._expected - self._config.tolerance

    def knows(self, key: int) -> bool:
        """It was judged in this window; what is asked again and again is one question."""
        return key in self._known

    def judge(self, key: int, question: str, answer: str, reference: str) -> bool:
        """Returns whether agreement is certainly below what is tolerated."""
        if len(self._losses) >= self._config.window:
            self._losses.clear()
            self._known.clear()
        self._known.add(key)
        self._losses.append(agreement(question, answer, reference) - 1)
        self.num_judged += 1
        if self.least is None or self.least <= 0:
            return False
        wealth = worse_by_more(np.array(self._losses), 1 - self.least)
        return bool(wealth[-1] >= log_threshold(self._config.alpha))

    def __str__(self) -> str:
        """For an operator, with an interval of which each end holds at any time but for the chance alpha."""
        expected = "not known" if self._expected is None else f"{100 * self._expected:.1f}"
        at_gate = f"{expected} at the gate"
        if not self._losses:
            return f"no agreement judged yet ({at_gate})"
        losses_N, alpha = np.array(self._losses), self._config.alpha
        low, high = 1 - worse_at_most(losses_N, alpha), 1 + worse_at_most(-losses_N, alpha)
        interval = f"{100 * max(low, 0.0):.1f} to {100 * min(high, 1.0):.1f}"
        mean = 100 * (1 + fmean(self._losses))
        return f"agreement {mean:.1f} % ({interval}) of {len(self._losses)} questions, {at_gate}"
