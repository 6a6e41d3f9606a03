"""Measures what ``kvquilt demo`` shows of speed: time to first token at a real model's size, with stored KV
and without, in one run.

The model has the shape of Qwen2-0.5B and random weights: time does not depend on what the weights say.
``full`` prefills 8 chunks of 512 tokens and a question; ``reordered`` finds the chunks' KV resident and
prefills the question only. Both run from "placements known" to the first token (``Timings.engine_ttft_s``).
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared.generation.asked import Chunk
from shared.generation.modes import ReuseMode
from shared.identity import ids_hash
from shared.measuring.asking import timings_of
from shared.measuring.case import Case
from shared.measuring.rates import Rates, measure_rates
from shared.measuring.report import Measurement, measured
from shared.measuring.shapes import QWEN2_05B

CASE = Case(QWEN2_05B, context=8 * 512, question=32)
FULL_RUNS, REORDERED_RUNS = 3, 9
BUDGET_S = 45.0  # no further run after this long, so that a slow machine is not kept busy
MS = 1000.0


@dataclass(frozen=True, slots=True)
class TtftComparison:
    """Milliseconds, one number per run. ``shuffled_ms``: ``reordered`` over the same chunks, in another order
    each time."""

    full_ms: Sequence[float]
    reordered_ms: Sequence[float]
    shuffled_ms: Sequence[float]
    limit_ms: float
    rates: Rates

    @property
    def measurement(self) -> Measurement:
        return measured("ttft_demo", self.reordered_ms, "ms", baseline=self.full_ms, limit=self.limit_ms)

    def lines(self) -> list[tuple[str, float, str]]:
        """Names of what was measured, its median in ms, and what that means."""
        limit = self.limit_ms
        full, reordered, shuffled = map(
            statistics.median, (self.full_ms, self.reordered_ms, self.shuffled_ms)
        )
        return [
            ("full", full, ""),
            ("reordered", reordered, f"{full / reordered:.1f} times faster"),
            ("reordered, chunks in other orders", shuffled, f"{full / shuffled:.1f} times faster"),
            ("physical limit of this machine", limit, f"{limit / reordered:.0%} of it reached"),
        ]


def compare_ttft(case: Case = CASE, on_step: Callable[[str], None] = lambda step: None) -> TtftComparison:
    """``full`` against ``reordered``, medians of several runs."""
    on_step("building the model")
    engine = case.build_engine()
    chunks = [Chunk(ids_hash(ids), ids) for ids in case.chunks()]

    def ttft_ms(contexts: Sequence[Sequence[Chunk]], reuse: ReuseMode) -> list[float]:
        """One number per context, but no more than the first two when ``BUDGET_S`` is used up."""
        started, times_ms = time.monotonic(), list[float]()
        for context in contexts:
            if len(times_ms) < 2 or time.monotonic() - started < BUDGET_S:
                request = case.request(f"ttft-{reuse.value}", context, case.questions(1), reuse)
                times_ms.append(timings_of(engine, request).engine_ttft_s * MS)
        return times_ms

    on_step("computing the chunks' KV once")
    ttft_ms([chunks], ReuseMode.REORDERED)
    shuffled = [random.Random(i).sample(chunks, len(chunks)) for i in range(REORDERED_RUNS)]
    on_step("reordered")
    # In turn, so that whatever else the machine does meets both alike.
    in_turn = ttft_ms([order for other in shuffled for order in (chunks, other)], ReuseMode.REORDERED)
    on_step("full")
    full_ms = ttft_ms([chunks] * FULL_RUNS, ReuseMode.FULL)
    engine.shut_down()
    on_step("the machine's limits")
    rates = measure_rates()
    limit_ms = case.shape.ttft_limit_s(case.question, case.prompt_len, rates) * MS
    return TtftComparison(full_ms, in_turn[::2], in_turn[1::2], limit_ms, rates)
