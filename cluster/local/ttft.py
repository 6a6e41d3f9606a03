"""What ``kvquilt demo`` shows of speed: time to first token at a real model's size, with stored KV and
without, in one run.

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

from shared.engine import Engine, EngineConfig
from shared.generation.asked import Chunk, GenerateRequest, SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.told import DoneEvent, FailedEvent
from shared.identity import ids_hash
from shared.measuring.rates import Rates, measure_rates
from shared.measuring.report import Measurement, measured
from shared.measuring.shapes import QWEN2_05B, Shape, build_model

NUM_CHUNKS, CHUNK_LEN, PREFIX_LEN, QUESTION_LEN = 8, 512, 16, 32
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
        baseline = statistics.median(self.full_ms)
        return measured(
            "ttft_demo", self.reordered_ms, "ms", better="lower", baseline=baseline, limit=self.limit_ms
        )

    def lines(self) -> list[tuple[str, float, str]]:
        """What was measured, its median in ms, and what that means."""
        full, reordered, shuffled = map(
            statistics.median, (self.full_ms, self.reordered_ms, self.shuffled_ms)
        )
        return [
            ("full", full, ""),
            ("reordered", reordered, f"{full / reordered:.1f} times faster"),
            ("reordered, chunks in other orders", shuffled, f"{full / shuffled:.1f} times faster"),
            (
                "physical limit of this machine",
                self.limit_ms,
                f"{self.limit_ms / reordered:.0%} of it reached",
            ),
        ]


def compare_ttft(
    shape: Shape = QWEN2_05B, on_step: Callable[[str], None] = lambda step: None
) -> TtftComparison:
    """``full`` against ``reordered``, medians of several runs."""
    on_step("building the model")
    engine = build_engine(shape)
    chunks = random_chunks(shape)
    on_step("computing the chunks' KV once")
    ttft_s(engine, chunks, ReuseMode.REORDERED)
    shuffled = [tuple(random.Random(i).sample(chunks, len(chunks))) for i in range(REORDERED_RUNS)]
    on_step("reordered")
    # In turn, so that whatever else the machine does meets both alike.
    in_turn = _runs_ms(
        engine, [order for other in shuffled for order in (chunks, other)], ReuseMode.REORDERED
    )
    on_step("full")
    full_ms = _runs_ms(engine, [chunks] * FULL_RUNS, ReuseMode.FULL)
    engine.shut_down()
    on_step("the machine's limits")
    rates = measure_rates()
    limit_ms = (
        shape.ttft_limit_s(QUESTION_LEN, PREFIX_LEN + NUM_CHUNKS * CHUNK_LEN + QUESTION_LEN, rates) * MS
    )
    return TtftComparison(full_ms, in_turn[::2], in_turn[1::2], limit_ms, rates)


def _runs_ms(engine: Engine, contexts: Sequence[tuple[Chunk, ...]], reuse: ReuseMode) -> list[float]:
    """One number per context, but no more than the first two when ``BUDGET_S`` is used up."""
    started = time.monotonic()
    times_ms: list[float] = []
    for chunks in contexts:
        if len(times_ms) < 2 or time.monotonic() - started < BUDGET_S:
            times_ms.append(ttft_s(engine, chunks, reuse) * MS)
    return times_ms


def build_engine(shape: Shape) -> Engine:
    return Engine(build_model(shape), EngineConfig(dtype="bfloat16"))


def random_chunks(shape: Shape) -> tuple[Chunk, ...]:
    noise = random.Random(1)
    pieces = [tuple(noise.randrange(shape.vocab) for _ in range(CHUNK_LEN)) for _ in range(NUM_CHUNKS)]
    return tuple(Chunk(ids_hash(ids), ids) for ids in pieces)


def ttft_s(engine: Engine, chunks: Sequence[Chunk], reuse: ReuseMode) -> float:
    """
    Raises:
        KvquiltError: the engine refused or failed.
    """
    prefix, question = tuple(range(1, 1 + PREFIX_LEN)), tuple(range(100, 100 + QUESTION_LEN))
    sampling = SamplingParams(max_tokens=1, ignore_eos=True)
    request = GenerateRequest(f"ttft-{reuse.value}", prefix, tuple(chunks), (question,), reuse, sampling)
    for event in engine.generate(request):
        if isinstance(event, FailedEvent):
            raise event.error
        if isinstance(event, DoneEvent):
            return event.timings.engine_ttft_s
    raise AssertionError("the engine ended without an event that says so")
