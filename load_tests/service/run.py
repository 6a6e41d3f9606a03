"""One run against a prepared target: warm up, unloaded, overhead per token, every mode at every rate,
quality."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from load_tests.service.arrivals import poisson
from load_tests.service.driver import Ask, Driver, OnToken, Progress
from load_tests.service.loads import Load
from load_tests.service.outcome import Unloaded
from load_tests.service.overhead import added_per_token_ms, one_by_one
from load_tests.service.plan import LoadPlan
from load_tests.service.quality import Agreement, agreement
from load_tests.service.result import Count, RateResult, overhead_ms, rate_result
from load_tests.service.sample import Reply, Sample
from load_tests.service.slo import METRICS, is_good
from load_tests.service.sweep import highest_rate
from shared.generation.modes import ReuseMode
from shared.generation.orders import AskedMode, may_reuse

WARMING = 2


class LoadObserver(Protocol):
    """Who is told what happens."""

    def doing(self, what: str) -> None: ...
    def under_way(self, reuse: str, rate: float, progress: Progress) -> None: ...
    def measured(self, result: RateResult) -> None: ...


@dataclass(frozen=True, slots=True)
class LoadFindings:
    limits_ms: dict[str, float]
    unloaded: tuple[Unloaded, ...]
    token_overhead_ms: tuple[float, ...]
    rates: tuple[RateResult, ...]
    quality: tuple[Agreement, ...]


class LoadRun:
    """Requests outside the load have negative numbers, so that nothing of them repeats in it."""

    def __init__(self, load: Load, plan: LoadPlan, watcher: LoadObserver) -> None:
        self._load = load
        self._plan = plan
        self._watcher = watcher

    async def findings(self) -> LoadFindings:
        """
        Raises:
            KvquiltError: a request failed while there was no load.
        """
        plan = self._plan
        self._watcher.doing("warming up")
        for mode in plan.unloaded_modes:
            # What reuses KV is asked all that is timed next, so that loading is no part of it; ``full`` has
            # nothing to load.
            num_warming = plan.num_unloaded if may_reuse(mode) else WARMING
            await one_by_one(self._ask(mode), range(-num_warming, 0))
        unloaded = [await self._unloaded(mode) for mode in plan.unloaded_modes]
        per_token = await self._token_overhead()
        limits_ms = plan.slo.limits_ms(_medians(unloaded[0]))
        rates: list[RateResult] = []
        for mode, alone in zip(plan.unloaded_modes, unloaded, strict=True):
            if mode in plan.reuse:
                rates += await _Mode(self._ask(mode), mode, plan, limits_ms, self._watcher).measure(
                    _medians(alone)["total"]
                )
        return LoadFindings(limits_ms, tuple(unloaded), per_token, tuple(rates), await self._quality())

    async def _unloaded(self, mode: AskedMode) -> Unloaded:
        self._watcher.doing(f"{mode}, one request at a time")
        samples = await one_by_one(self._ask(mode), range(-self._plan.num_unloaded, 0))
        times = {
            name: [value for s in samples if (value := s.metric_ms(name)) is not None] for name in METRICS
        }
        return Unloaded(
            mode,
            tuple(times["ttft"]),
            tuple(times["tpot"]),
            tuple(times["total"]),
            tuple(map(overhead_ms, samples)),
        )

    async def _token_overhead(self) -> tuple[float, ...]:
        plan = self._plan
        if not plan.num_streams:
            return ()
        self._watcher.doing(f"{plan.num_streams} streams at once")
        ask = self._ask(plan.reuse[-1])
        return tuple(
            [await added_per_token_ms(ask, range(-plan.num_streams, 0)) for _ in range(plan.stream_rounds)]
        )

    async def _quality(self) -> tuple[Agreement, ...]:
        others = [mode for mode in self._plan.reuse if may_reuse(mode)]
        if not others or not self._plan.num_quality:
            return ()
        self._watcher.doing("comparing answers with full")
        numbers = range(self._plan.num_quality)
        references = await one_by_one(self._ask(ReuseMode.FULL), numbers)
        return tuple(
            [agreement(mode, await one_by_one(self._ask(mode), numbers), references) for mode in others]
        )

    def _ask(self, mode: AskedMode) -> Ask:
        async def ask(number: int, on_token: OnToken) -> Reply:
            return await self._load.ask(number, mode, on_token)

        return ask


class _Mode:
    """All rates of one reuse mode."""

    def __init__(
        self, ask: Ask, mode: AskedMode, plan: LoadPlan, limits_ms: dict[str, float], watcher: LoadObserver
    ) -> None:
        self._ask = ask
        self._mode = mode
        self._plan = plan
        self._limits_ms = limits_ms
        self._watcher = watcher
        self._results: list[RateResult] = []

    async def measure(self, unloaded_total_ms: float) -> list[RateResult]:
        plan = self._plan
        if plan.trace:
            await self._at(len(plan.trace) / (plan.trace[-1] or 1.0), plan.trace)
        elif plan.rates:
            for rate in plan.rates:
                await self._at(rate, poisson(rate, max(1, round(rate * plan.duration_s)), plan.seed))
        else:
            # One at a time is a rate that the service can do; with half of it queues are short.
            await highest_rate(self._holds, 500 / unloaded_total_ms, precision=plan.precision)
        return self._results

    async def _holds(self, rate: float) -> bool:
        count = max(1, round(rate * self._plan.span_s(rate, self._limits_ms)))
        return (await self._at(rate, poisson(rate, count, self._plan.seed), may_stop=True)).holds

    async def _at(self, rate: float, arrivals: Sequence[float], may_stop: bool = False) -> RateResult:
        num_warmup = int(self._plan.warmup * len(arrivals))
        max_bad = self._plan.slo.max_bad(len(arrivals) - num_warmup)

        def hopeless(progress: Progress) -> bool:
            return may_stop and self._num_bad(progress, num_warmup) > max_bad

        driver = Driver(
            self._ask,
            self._plan.max_in_flight,
            lambda progress: self._watcher.under_way(self._mode, rate, progress),
            hopeless,
        )
        samples = await driver.run(arrivals)
        count = Count(len(arrivals), num_warmup, max_bad, stopped_early=len(samples) < len(arrivals))
        result = rate_result(self._mode, rate, samples, self._limits_ms, count)
        self._results.append(result)
        self._watcher.measured(result)
        return result

    def _num_bad(self, progress: Progress, num_warmup: int) -> int:
        ended = sum(
            _bad(sample, self._limits_ms) for sample in progress.samples if sample.index >= num_warmup
        )
        waits_s = self._limits_ms.get("ttft", self._limits_ms.get("total", float("inf"))) / 1000
        return ended + progress.overdue(waits_s, num_warmup)


def _bad(sample: Sample, limits_ms: dict[str, float]) -> bool:
    return not is_good(sample, limits_ms)


def _medians(unloaded: Unloaded) -> dict[str, float]:
    return {name: statistics.median(getattr(unloaded, f"{name}_ms") or (0.0,)) for name in METRICS}
