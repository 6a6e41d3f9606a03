"""Eight branches over one context that draw their tokens at a temperature, against the same branches decoding
greedily."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from load_tests.engine.case import Case
from load_tests.engine.ours import Ours
from load_tests.engine.workers import Worker
from shared.measuring.report import Measurement, measured

BRANCHES = 8
TEMPERATURE = 0.8


def compare_sampled(case: Case, runs: int, say: Callable[[str], None]) -> Measurement:
    say(f"decoding {BRANCHES} sampled over {case.context} tokens")
    greedy, sampled = [], []
    with Worker(Ours, case) as ours:
        for _ in range(runs):  # in turn, so that whatever else the machine does meets both alike
            greedy.append(ours.call("decode_rate", BRANCHES))
            sampled.append(ours.call("decode_rate", BRANCHES, TEMPERATURE))
    name = f"decode_{BRANCHES}_sampled"
    return measured(name, sampled, "token/s", better="higher", baseline=statistics.median(greedy))
