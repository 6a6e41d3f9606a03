"""Runs once against a prepared target: warm up, unloaded, over HTTP, overhead per token, every mode at every
rate, quality."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from load_tests.service.arrivals import poisson
from load_tests.service.driver import Ask, Driver, OnToken, Progress
from load_tests.service.loads import Load
from load_tests.service.outcome import BothWays, Gathered, Unloaded, quickest
from load_tests.service.overhead import added_per_token_ms, at_once_both_ways, both_ways, one_by_one
from load_tests.service.plan import LoadPlan
from load_tests.service.quality import Agreement, agreement
from load_tests.service.result import Count, RateResult, overhead_ms, rate_result
from load_tests.service.sample import Reply
from load_tests.service.slo import METRICS, is_good
from load_tests.service.sweep import highest_rate
from shared.generation.modes import ReuseMode
from shared.generation.orders import AskedMode, may_reuse

WARMING = 2


class LoadObserver(Protocol):
    """Somebody who is told what happens."""

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
    both_ways: BothWays | None = None
    gathered: tuple[Gathered, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadRun:
    """Requests outside the load have negative numbers, so that nothing of them repeats in it. ``over_http``:
    the same load over HTTP, to be compared with it, and ``singly`` the same with a message for each event;
    None: it is not compared."""

    load: Load
    plan: LoadPlan
    watcher: LoadObserver
    over_http: Load | None = None
    singly: Load | None = None

    async def findings(self) -> LoadFindings:
        """
        Raises:
            KvquiltError: a request failed while there was no load.
        """
        plan = self.plan
        self.watcher.doing("warming up")
        for mode in plan.unloaded_modes:
            # What reuses KV is asked all that is timed next, so that loading is no part of it; ``full`` has
            # nothing to load.
            num_warming = plan.num_unloaded if may_reuse(mode) else WARMING
            await one_by_one(self._ask(mode), range(-num_warming, 0))
        unloaded = [await self._unloaded(mode) for mode in plan.unloaded_modes]
        over_both = await self._both_ways(quickest(unloaded).reuse)
        gathered = await self._gathered()
        per_token = await self._token_overhead()
        limits_ms = plan.slo.limits_ms(_medians(unloaded[0]))
        rates: list[RateResult] = []
        for mode, alone in zip(plan.unloaded_modes, unloaded, strict=True):
            if mode in plan.reuse:
                rates += await _Mode(self._ask(mode), mode, plan, limits_ms, self.watcher).measure(
                    _medians(alone)["total"]
                )
        quality = await self._quality()
        return LoadFindings(limits_ms, tuple(unloaded), per_token, tuple(rates), quality, over_both, gathered)

    async def _unloaded(self, mode: AskedMode) -> Unloaded:
        self.watcher.doing(f"{mode}, one request at a time")
        samples = await one_by_one(self._ask(mode), range(-self.plan.num_unloaded, 0))
        times = {
            f"{name}_ms": tuple(value for s in samples if (value := s.metric_ms(name)) is not None)
            for name in METRICS
        }
        return Unloaded(mode, overhead_ms=tuple(map(overhead_ms, samples)), **times)

    async def _both_ways(self, reuse: str) -> BothWays | None:
        """Of what was asked before, so that all KV is resident."""
        if self.over_http is None:
            return None
        self.watcher.doing(f"{reuse} over HTTP and gRPC, one request at a time")
        mode = next(mode for mode in self.plan.unloaded_modes if mode == reuse)
        grpc, http = self._ask(mode), self._ask(mode, self.over_http)
        await one_by_one(http, range(-WARMING, 0))
        numbers = [*range(-self.plan.num_unloaded, 0)] * self.plan.http_rounds
        pairs = await both_ways(grpc, http, numbers)
        ttfts = [(one.metric_ms("ttft"), other.metric_ms("ttft")) for one, other in pairs]
        told = [(grpc, http) for grpc, http in ttfts if grpc is not None and http is not None]
        return BothWays(reuse, tuple(grpc for grpc, _ in told), tuple(http for _, http in told))

    async def _gathered(self) -> tuple[Gathered, ...]:
        """Of what was asked before, so that all KV is resident."""
        if self.singly is None:
            return ()
        plan, mode = self.plan, self.plan.reuse[-1]
        gathered, singly = self._ask(mode), self._ask(mode, self.singly)
        self.watcher.doing("a message for each token, and tokens gathered")
        alone = [*range(-plan.num_unloaded, 0)]
        pairs = await both_ways(gathered, singly, alone * plan.stream_rounds)
        found = [Gathered.of(1, [one for one, _ in pairs], [other for _, other in pairs])]
        if plan.num_streams > 1:
            streams = range(-plan.num_streams, 0)
            ways = await at_once_both_ways(gathered, singly, streams, plan.stream_rounds)
            found.append(Gathered.of(plan.num_streams, *ways))
        return tuple(found)

    async def _token_overhead(self) -> tuple[float, ...]:
        plan = self.plan
        if not plan.num_streams:
            return ()
        self.watcher.doing(f"{plan.num_streams} streams at once")
        ask = self._ask(plan.reuse[-1])
        return tuple(
            [await added_per_token_ms(ask, range(-plan.num_streams, 0)) for _ in range(plan.stream_rounds)]
        )

    async def _quality(self) -> tuple[Agreement, ...]:
        others = [mode for mode in self.plan.reuse if may_reuse(mode)]
        if not others or not self.plan.num_quality:
            return ()
        self.watcher.doing("comparing answers with full")
        numbers = range(self.plan.num_quality)
        references = await one_by_one(self._ask(ReuseMode.FULL), numbers)
        return tuple(
            [agreement(mode, await one_by_one(self._ask(mode), numbers), references) for mode in others]
        )

    def _ask(self, mode: AskedMode, load: Load | None = None) -> Ask:
        load = load or self.load

        async def ask(number: int, on_token: OnToken) -> Reply:
            return await load.ask(number, mode, on_token)

        return ask


@dataclass(slots=True)
class _Mode:
    """All rates of one reuse mode."""

    ask: Ask
    mode: AskedMode
    plan: LoadPlan
    limits_ms: dict[str, float]
    watcher: LoadObserver
    results: list[RateResult] = field(default_factory=list)

    async def measure(self, unloaded_total_ms: float) -> list[RateResult]:
        plan = self.plan
        if plan.trace:
            await self._at(len(plan.trace) / (plan.trace[-1] or 1.0), plan.trace)
        elif plan.rates:
            for rate in plan.rates:
                await self._at(rate, poisson(rate, max(1, round(rate * plan.duration_s)), plan.seed))
        else:
            # One at a time is a rate that the service can do; with half of it queues are short.
            await highest_rate(self._holds, 500 / unloaded_total_ms, precision=plan.precision)
        return self.results

    async def _holds(self, rate: float) -> bool:
        count = max(1, round(rate * self.plan.span_s(rate, self.limits_ms)))
        return (await self._at(rate, poisson(rate, count, self.plan.seed), may_stop=True)).holds

    async def _at(self, rate: float, arrivals: Sequence[float], may_stop: bool = False) -> RateResult:
        num_warmup = int(self.plan.warmup * len(arrivals))
        max_bad = self.plan.slo.max_bad(len(arrivals) - num_warmup)

        def hopeless(progress: Progress) -> bool:
            return may_stop and self._num_bad(progress, num_warmup) > max_bad

        driver = Driver(
            self.ask,
            self.plan.max_in_flight,
            lambda progress: self.watcher.under_way(self.mode, rate, progress),
            hopeless,
        )
        samples = await driver.run(arrivals)
        count = Count(len(arrivals), num_warmup, max_bad, stopped_early=len(samples) < len(arrivals))
        result = rate_result(self.mode, rate, samples, self.limits_ms, count)
        self.results.append(result)
        self.watcher.measured(result)
        return result

    def _num_bad(self, progress: Progress, num_warmup: int) -> int:
        ended = sum(
            not is_good(sample, self.limits_ms) for sample in progress.samples if sample.index >= num_warmup
        )
        waits_s = self.limits_ms.get("ttft", self.limits_ms.get("total", float("inf"))) / 1000
        return ended + progress.overdue(waits_s, num_warmup)


def _medians(unloaded: Unloaded) -> dict[str, float]:
    return {name: statistics.median(getattr(unloaded, f"{name}_ms") or (0.0,)) for name in METRICS}
