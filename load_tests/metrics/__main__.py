"""Measures what metrics cost: one observation, one look at all of them, and answers with and without, in
turn.

    python -m load_tests.metrics --json build/metrics.json

The shipped model answers one question in several samples, through the engine's thread as the service does:
once alone, once with everything counted that the generator counts and somebody looking ten times a second,
many times as often as Prometheus does.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

from cluster.paths import DEMO_MODEL
from load_tests.benchmark import at_least, in_turn, json_option, new_parser, option, printed
from services.generator.engine_thread import EngineThread
from services.generator.metering import following, readings
from shared.engine import Engine, EngineConfig, load_model
from shared.generation.asked import GenerateRequest, SamplingParams
from shared.measuring.report import Measurement, measured, write_report
from shared.metrics import table
from shared.metrics.recorder import Metrics
from shared.request import RequestContext

_OBSERVATIONS = 20_000
_LOOK_EVERY_S = 0.1
_PROMPT = tuple(range(1, 33))


@dataclass(frozen=True, slots=True)
class MetricsPlan:
    runs: int = 20
    samples: int = 8
    tokens: int = 64


def measure(plan: MetricsPlan) -> Iterator[Measurement]:
    metrics = Metrics("generator", "bench")
    yield measured("observation", [_per_call(lambda: metrics.observe(table.LOAD_SECONDS, 0.2))], "s")
    yield measured("count", [_per_call(lambda: metrics.add(table.RPCS, method="Search", code="OK"))], "s")
    engine = Engine(load_model(str(DEMO_MODEL)), EngineConfig())
    spec = engine.model.spec
    metrics.ask(lambda: readings(engine.stats(), EngineConfig().private_bytes, spec.kv_bytes_per_token))
    thread = EngineThread(engine)
    try:
        alone, counted = in_turn(
            (plan.runs, lambda: asyncio.run(_answer(thread, plan))),
            (plan.runs, lambda: asyncio.run(_counted_answer(thread, plan, metrics))),
        )
    finally:
        thread.close()
    yield measured("look", [_timed(metrics.text) for _ in range(plan.runs)], "s")
    yield measured("answer_counted", counted, "s", baseline=alone)
    pairs = [with_s / without_s for with_s, without_s in zip(counted, alone, strict=True)]
    yield measured("answer_counted_over_alone", pairs, "ratio")


async def _answer(thread: EngineThread, plan: MetricsPlan) -> float:
    began = time.perf_counter()
    async with aclosing(thread.stream(_request(plan), RequestContext.create())) as events:
        async for _ in events:
            pass
    return time.perf_counter() - began


async def _counted_answer(thread: EngineThread, plan: MetricsPlan, metrics: Metrics) -> float:
    with _looking(metrics):
        began = time.perf_counter()
        with following(metrics, ()) as followed:
            async with aclosing(thread.stream(_request(plan), RequestContext.create())) as events:
                async for event in events:
                    followed.on(event)
        return time.perf_counter() - began


@contextmanager
def _looking(metrics: Metrics) -> Iterator[None]:
    """Somebody looks again and again, in a thread of his own."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_EVERY_S):
            metrics.text()

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        ended.set()
        looking.join()


def _request(plan: MetricsPlan) -> GenerateRequest:
    sampling = SamplingParams(n=plan.samples, max_tokens=plan.tokens, temperature=1.0, ignore_eos=True)
    return GenerateRequest("", (), (), (_PROMPT,), sampling=sampling)


def _per_call(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    for _ in range(_OBSERVATIONS):
        call()
    return (time.perf_counter() - began) / _OBSERVATIONS


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> int:
    parser = new_parser("load_tests.metrics", __doc__)
    defaults = MetricsPlan()
    option(parser, "--runs", defaults.runs, "answers each way", type=at_least(1))
    option(parser, "--samples", defaults.samples, "of one question", type=at_least(1))
    option(parser, "--tokens", defaults.tokens, "of each sample", type=at_least(2))
    json_option(parser)
    args = parser.parse_args()
    measurements = printed(measure(MetricsPlan(args.runs, args.samples, args.tokens)))
    if args.json:
        write_report(args.json, measurements)
    return 0


if __name__ == "__main__":
    sys.exit(main())
