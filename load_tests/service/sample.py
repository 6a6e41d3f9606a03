"""Holds what one request cost. Every time runs from the instant at which it was meant to be sent, whatever
kept the client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shared.generation.selection import SelectionTimings
from shared.generation.told import Timings, Usage

OK = "OK"
NOT_SENT = "NOT_SENT"  # too many were in flight: the client's own safety limit
MS = 1000.0


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. ``tokens``: the ids of every branch, in order of (question, sample). ``selecting``: of
    a selector, where one chose the tokens to compute anew."""

    usage: Usage
    timings: Timings
    tokens: tuple[tuple[int, ...], ...] = ()
    selecting: SelectionTimings | None = None


@dataclass(slots=True)
class Sample:
    """A request, under way until ``end``. ``status``: OK, a gRPC status code, or NOT_SENT; ``detail`` of an
    error. Instants in seconds from the run's start; those of tokens are None where there was none. ``index``:
    the request's place among the arrivals."""

    index: int
    intended_s: float
    sent_s: float
    first_token_s: float | None = None
    last_token_s: float | None = None
    branch_lens: Counter[tuple[int, int]] = field(default_factory=Counter)
    ended_s: float = 0.0
    status: str = ""
    detail: str = ""
    reply: Reply | None = None

    def token(self, now_s: float, branch: tuple[int, int]) -> None:
        """A token of ``branch`` (question, sample) arrived."""
        if self.first_token_s is None:
            self.first_token_s = now_s
        self.last_token_s = now_s
        self.branch_lens[branch] += 1

    def end(self, now_s: float, status: str, detail: str = "", reply: Reply | None = None) -> Sample:
        self.ended_s, self.status, self.detail, self.reply = now_s, status, detail, reply
        return self

    @property
    def ok(self) -> bool:
        return self.status == OK

    @property
    def send_lag_ms(self) -> float:
        """The client's own lateness; part of every time below."""
        return (self.sent_s - self.intended_s) * MS

    def metric_ms(self, name: str) -> float | None:
        """``ttft``, ``tpot`` or ``total``."""
        if self.first_token_s is None or self.last_token_s is None:
            return None
        match name:
            case "ttft":
                return (self.first_token_s - self.intended_s) * MS
            case "tpot":
                further = max(self.branch_lens.values()) - 1
                return (self.last_token_s - self.first_token_s) * MS / further if further > 0 else None
            case _:
                return (self.ended_s - self.intended_s) * MS


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all are not above; 0.0 of none."""
    return float(np.quantile(values, share, method="inverted_cdf")) if values else 0.0
