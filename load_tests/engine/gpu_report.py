"""Settles in one run what the engine reaches on a GPU: ``python -m load_tests.engine --device cuda --report
gpu``.

Parts come in order of worth. One that fails is told, and the others still run; when the time is up nothing is
begun. What is known is in the report file after every part. The parts and what they aim at:

| part | against | aim |
| --- | --- | --- |
| ``first_token`` | stock transformers' flash prefill of everything | at least 40 times faster |
| ``decode`` | (weights + KV) ÷ bandwidth; 16 branches against one | at most 1.5 times; at most 1.3 times |
| ``recompute`` | the flash prefill; 20 % computed anew | at least 4 times faster |
| ``batches`` | TurboRAG's Table 4; KV brought from host memory | at least 20 times faster |
| ``short`` | TurboRAG's Table 11: shorter contexts | |
| ``small_model`` | (weights + KV) ÷ bandwidth, SmolLM2-135M's shape | |

Throughput against vLLM's prefix cache is not among them: vLLM has not been there to be asked.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from load_tests.benchmark import in_turn, printed, say
from load_tests.engine.batches import BatchEngine
from load_tests.engine.command import check_there, limits
from load_tests.engine.compare import Runs, batch_first_tokens, branch_steps, first_tokens
from load_tests.engine.ours import Ours
from load_tests.engine.stock import Stock
from shared.measuring.case import Case
from shared.measuring.rates import Rates
from shared.measuring.report import Measurement, measured, write_report
from shared.measuring.shapes import QWEN2_7B, SMOLLM2_135M
from shared.measuring.workers import Worker

RECOMPUTED = 0.2
_MOST_OF_BUDGET = 0.4  # for a part, so that one that hangs leaves time for others
Measure = Callable[[], Iterator[Measurement]]


@dataclass(frozen=True, slots=True)
class ReportPlan:
    """``case``: of the large model; ``small``: of the small one. ``batches``: of Table 4; ``short``: contexts
    and batches of Table 11."""

    case: Case
    small: Case
    rates: Rates
    runs: Runs = field(default_factory=lambda: Runs(cold=3, warm=5, decode=3))
    branches: Sequence[int] = (1, 16)
    batches: Sequence[int] = (1, 2, 4, 6, 8)
    short: tuple[Sequence[int], Sequence[int]] = ((256, 512, 1024), (1, 2, 4, 8))
    budget_s: float = 480.0


@dataclass(frozen=True, slots=True)
class Aim:
    """Aim for ``number`` of the measurement. ``most``: and not more than; else not less."""

    measurement: str
    number: Callable[[Measurement], float | None]
    value: float
    most: bool = False

    def told(self, measurements: Sequence[Measurement]) -> dict[str, Any]:
        """Unknown is not reached."""
        found = next((m for m in measurements if m.name == self.measurement), None)
        number = None if found is None else self.number(found)
        reached = number is not None and (number <= self.value if self.most else number >= self.value)
        return {
            "measurement": self.measurement,
            "aim": f"{'at most' if self.most else 'at least'} {self.value:g}",
            "measured": number,
            "reached": reached,
        }


def aims_of(case: Case) -> list[Aim]:
    context = case.context
    return [
        Aim(f"ttft_stitched_{context}", _ratio, 40),
        Aim(f"ttft_batch_1_{context}_with_transfer", _ratio, 20),
        Aim(f"ttft_recomputed_{round(100 * RECOMPUTED)}_{context}", _ratio, 4),
        Aim(f"step_of_16_over_{context}_in_steps_of_one", lambda m: m.value, 1.3, most=True),
        Aim(f"step_of_1_over_{context}", lambda m: m.limit and m.value / m.limit, 1.5, most=True),
    ]


def _ratio(m: Measurement) -> float | None:
    return m.ratio


@dataclass(slots=True)
class GpuReport:
    """``on_part`` is called after every part, to keep what is known. ``failed``: part → why."""

    plan: ReportPlan
    on_part: Callable[[GpuReport], None] = lambda _: None
    measurements: list[Measurement] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    _workers: dict[str, Future[Worker]] = field(default_factory=dict)
    _threads: ThreadPoolExecutor = field(default_factory=ThreadPoolExecutor)
    _end_s: float = 0.0  # of the part

    def run(self) -> Iterator[Measurement]:
        self._end_s = end_s = time.monotonic() + self.plan.budget_s
        if self.plan.budget_s > 0:
            say("building all that is measured")
            wait([begin() for begin in (self._stock, self._ours, self._batch_engine, self._small)])
        try:
            for name, part in self._parts().items():
                yield from self._guarded(name, part, end_s)
                self.on_part(self)
        finally:
            self._drop(*self._workers)

    def details(self) -> dict[str, Any]:
        """Of the report file."""
        aims = [aim.told(self.measurements) for aim in aims_of(self.plan.case)]
        return {"aims": aims, "failed": self.failed}

    def _parts(self) -> dict[str, Measure]:
        return {
            "first_token": self._first_token,
            "decode": self._decode,
            "recompute": self._recompute,
            "batches": self._batches,
            "short": self._short,
            "small_model": self._small_model,
        }

    def _guarded(self, name: str, part: Measure, end_s: float) -> Iterator[Measurement]:
        began = time.monotonic()
        if began >= end_s:
            self.failed[name] = "the time was up before it began"
            return
        self._end_s = min(end_s, began + self.plan.budget_s * _MOST_OF_BUDGET)
        try:
            for measurement in part():
                self.measurements.append(measurement)
                yield measurement
        except Exception as error:  # whatever a driver, a compiler or a library may raise
            self.failed[name] = str(error).strip()
            say(f"{name} failed: {self.failed[name].splitlines()[-1] if self.failed[name] else error!r}")
            self._drop(*self._workers)  # nobody knows what state their device is in
        say(f"{name}: {time.monotonic() - began:.0f} s")

    def _begin(self, name: str, build: Callable[..., object], *args: Any) -> Future[Worker]:
        if name not in self._workers:
            self._workers[name] = self._threads.submit(TimedWorker, self._end_s, build, *args)
        return self._workers[name]

    def _there(self, begun: Future[Worker]) -> Worker:
        """
        Raises:
            WorkerFailed: it could not be built.
        """
        worker = begun.result()
        worker.end_s = self._end_s
        return worker

    def _drop(self, *names: str) -> None:
        for begun in [self._workers.pop(name) for name in names if name in self._workers]:
            if begun.exception() is None:
                begun.result().__exit__()

    # --- the parts -----------------------------------------------------------------------------------------

    def _stock(self) -> Future[Worker]:
        return self._begin("stock", Stock, self.plan.case)

    def _ours(self) -> Future[Worker]:
        return self._begin("ours", Ours, self.plan.case)

    def _batch_engine(self) -> Future[Worker]:
        return self._begin("batches", BatchEngine, self.plan.case, max(self.plan.batches))

    def _small(self) -> Future[Worker]:
        return self._begin("small", Ours, self.plan.small)

    def _first_token(self) -> Iterator[Measurement]:
        plan = self.plan
        stock, ours = self._there(self._stock()), self._there(self._ours())
        return first_tokens(plan.case, plan.rates, plan.runs, stock, ours)

    def _decode(self) -> Iterator[Measurement]:
        plan = self.plan
        return branch_steps(plan.case, plan.branches, plan.rates, plan.runs, self._there(self._ours()))

    def _recompute(self) -> Iterator[Measurement]:
        plan, case = self.plan, self.plan.case
        stock, ours = self._there(self._stock()), self._there(self._ours())
        say(f"first token with {RECOMPUTED:.0%} computed anew")
        cold, recomputed = in_turn(
            (plan.runs.cold, lambda: stock.call(Stock.cold_prefill_s)),
            (plan.runs.warm, lambda: ours.call(Ours.recomputed_s, RECOMPUTED)),
        )
        rows = round(RECOMPUTED * case.context) + case.question
        flops = case.shape.flops(rows, (case.prompt_len + 1) // 2)
        name = f"ttft_recomputed_{round(100 * RECOMPUTED)}_{case.context}"
        yield measured(
            name, recomputed, "s", baseline=cold, limit=plan.rates.limit_s(flops, 0.0), flops=flops
        )

    def _batch(self, context: int, batch: int) -> Iterator[Measurement]:
        """With the prefill of everything, for its arithmetic."""
        plan, case = self.plan, replace(self.plan.case, context=context)
        stock, ours = self._there(self._stock()), self._there(self._batch_engine())
        runs = replace(plan.runs, cold=min(plan.runs.cold, 2))
        for measurement in batch_first_tokens(case, batch, plan.rates, runs, stock, ours):
            yield measurement
        if measurement.baseline is not None:
            cold_s, flops = measurement.baseline, batch * case.cold_flops
            yield measured(f"ttft_batch_{batch}_{context}_cold", [cold_s], "s", flops=flops)

    def _batches(self) -> Iterator[Measurement]:
        self._drop("ours")  # room for many contexts
        for batch in self.plan.batches:
            yield from self._batch(self.plan.case.context, batch)

    def _short(self) -> Iterator[Measurement]:
        contexts, batches = self.plan.short
        for context in contexts:
            for batch in batches:
                yield from self._batch(context, batch)

    def _small_model(self) -> Iterator[Measurement]:
        self._drop("stock", "batches")
        plan = self.plan
        ours = self._there(self._small())
        for m in branch_steps(plan.small, plan.branches, plan.rates, plan.runs, ours):
            yield replace(m, name=f"small_model_{m.name}")


def run_gpu_report(args: argparse.Namespace) -> int:
    """Exit codes: 0 all parts were measured, 1 some were not, 2 wrong input."""
    try:
        if not args.device.startswith("cuda"):
            raise ValueError("--report: gpu is of one; give --device cuda with it")
        check_there(args.device)
    except ValueError as error:
        print(f"load_tests.engine: {error}", file=sys.stderr)
        return 2
    case = Case(QWEN2_7B, 8192, device=args.device, threads=args.threads, compile=args.compile)
    small = replace(case, shape=SMOLLM2_135M, decode=64)
    rates = limits(args.device)

    def keep(report: GpuReport) -> None:
        if args.json:
            write_report(args.json, report.measurements, report.details(), **asdict(rates))

    report = GpuReport(ReportPlan(case, small, rates), keep)
    printed(report.run())
    details = report.details()
    print()
    for aim in details["aims"]:
        number = "unknown" if aim["measured"] is None else f"{aim['measured']:.2f}"
        said = "reached" if aim["reached"] else "NOT reached"
        print(f"{aim['measurement']:44} {aim['aim']:14} {number:>8}  {said}")
    for part, reason in report.failed.items():
        print(f"{part:44} not measured: {reason.splitlines()[-1] if reason else 'no reason given'}")
    return 1 if report.failed else 0


class TimedWorker(Worker):
    """One that may work until ``end_s``, which building it counts in."""

    def __init__(self, end_s: float, build: Callable[..., object], *args: Any) -> None:
        self.end_s = end_s
        super().__init__(build, *args)
