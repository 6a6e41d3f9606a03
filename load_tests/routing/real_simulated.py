"""Compares the simulator with a real run: asks it the run's own questions, at the same instants, on machines
as fast as the real ones were measured to be."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from load_tests.routing.choosers import ByChunkCost, ByRendezvous, ReplicaChooser, ShortestOfTwo
from load_tests.routing.plan import DayPlan
from load_tests.routing.real_findings import DEFAULT, OURS, RENDEZVOUS, RealAnswer, WayRun
from load_tests.routing.real_plan import STEADY, PlannedQuestion, RealPlan, instants_s, num_documents, planned
from load_tests.routing.simulator import Simulation
from load_tests.routing.workload import Scenario, TimedQuestion
from shared.generation.told import Timings
from shared.measuring.report import Measurement
from shared.routing.costs import IN_ENGINE, ReplicaRates, RoutedQuestion, Tier, WantedChunk, chunk_key

_TOLD_MS = 500.0
"""How often replicas tell, and routers ask."""


@dataclass(frozen=True, slots=True)
class HitsAndTimes:
    """Of the steady phase of the first round. ``first_token_p95_ms``: from a question's arrival at its
    replica."""

    hit_ratio: float
    first_token_p95_ms: float


@dataclass(frozen=True, slots=True)
class SimulatedWay:
    way: str
    simulated: HitsAndTimes
    measured: HitsAndTimes

    def __str__(self) -> str:
        simulated, real = self.simulated, self.measured
        return (
            f"{self.way}: the simulator says {simulated.hit_ratio:.0%} hits, measured {real.hit_ratio:.0%}; "
            f"first token at the replica p95 {simulated.first_token_p95_ms:.0f} ms, measured "
            f"{real.first_token_p95_ms:.0f} ms"
        )


def compared(plan: RealPlan, runs: Mapping[str, WayRun]) -> list[SimulatedWay]:
    """By way. Empty where nothing was loaded, or no question found all of its chunks: how fast these machines
    are is not known then."""
    again = _asked_again(plan, [answer for run in runs.values() for answer in run.answers])
    if again is None:
        return []
    return [SimulatedWay(way, again.simulated(way), _measured(run)) for way, run in runs.items()]


def measurements(found: Iterable[SimulatedWay]) -> Iterator[Measurement]:
    """Values are simulated, baselines measured."""
    for one in found:
        simulated, real = one.simulated, one.measured
        name = f"simulated_hit_ratio_{one.way}"
        yield Measurement(name, simulated.hit_ratio, "fraction", real.hit_ratio)
        name = f"simulated_first_token_p95_{one.way}"
        yield Measurement(name, simulated.first_token_p95_ms, "ms", real.first_token_p95_ms)


@dataclass(frozen=True, slots=True)
class _AskedAgain:
    """The questions of a first round. ``chunk_tokens``, ``own_tokens``, ``rates``, ``decode_ms``: as they
    were measured."""

    plan: RealPlan
    questions: Sequence[PlannedQuestion]
    chunk_tokens: float
    own_tokens: int
    rates: ReplicaRates
    decode_ms: float

    def simulated(self, way: str) -> HitsAndTimes:
        plan, day = self.plan, self._day()
        choosers: Mapping[str, Callable[[], ReplicaChooser]] = {
            DEFAULT: lambda: ShortestOfTwo(day),
            RENDEZVOUS: lambda: ByRendezvous(day),
            OURS: lambda: ByChunkCost(day, self.rates),
        }
        answers = Simulation(day, choosers[way](), self._scenario()).run().answers
        return _hits_and_times(
            (sum(tier in IN_ENGINE for tier in answer.tiers) / plan.chunks, answer.ttft_ms)
            for question, answer in zip(self.questions, answers, strict=True)
            if question.phase == STEADY
        )

    def _day(self) -> DayPlan:
        plan = self.plan
        held = int(plan.pool_share * plan.working_tokens / self.chunk_tokens)
        return DayPlan(
            num_replicas=plan.replicas,
            replicas_per_node=plan.replicas,
            num_questions=len(self.questions),
            chunks_per_question=plan.chunks,
            stray_chunks=0,
            pool_chunks=max(2 * plan.chunks, held),
            disk_chunks=num_documents([self.questions], plan) * plan.chunks,
            load=plan.rate / plan.replicas,
            routers=1,
            lost_share=0.0,
            report_ms=_TOLD_MS,
            lag_ms=_TOLD_MS / 2,
            report_loss=0.0,
            rolls=False,
            seed=plan.seed,
        )

    def _scenario(self) -> Scenario:
        documents = [self._chunks(number) for number in range(num_documents([self.questions], self.plan))]
        return Scenario(self._arrivals(documents), documents, self.rates, self.decode_ms)

    def _arrivals(self, documents: Sequence[Sequence[WantedChunk]]) -> Iterator[TimedQuestion]:
        """The first questions, which came as they were answered, as fast as the others."""
        plan = self.plan
        warm_s = [number / plan.rate for number in range(plan.warm)]
        others_s = [plan.warm / plan.rate + at_s for at_s in instants_s(plan, self.questions)]
        for question, at_s in zip(self.questions, warm_s + others_s, strict=True):
            wanted = RoutedQuestion(tuple(documents[question.document]), self.own_tokens)
            yield TimedQuestion(question.number, at_s * 1e3, wanted)

    def _chunks(self, document: int) -> list[WantedChunk]:
        keys = (chunk_key(f"{document}/{place}") for place in range(self.plan.chunks))
        return [WantedChunk(key, round(self.chunk_tokens)) for key in keys]


def _asked_again(plan: RealPlan, answers: Sequence[RealAnswer]) -> _AskedAgain | None:
    loaded = [a for a in answers if a.loaded_tokens > 0 and a.timings.load_s > 0]
    held = [a for a in answers if a.hit_share == 1 and a.own_tokens > 0]
    if not loaded or not held:
        return None
    prefill_ms = statistics.median(a.timings.prefill_s * 1e3 / a.own_tokens for a in held)
    link_ms = statistics.median(a.timings.load_s * 1e3 / a.loaded_tokens for a in loaded)
    links = dict.fromkeys((Tier.DISK, Tier.PEER, Tier.OBJECTS), link_ms)
    first, *_ = planned(plan)
    return _AskedAgain(
        plan,
        first,
        statistics.fmean(a.context_tokens for a in answers) / plan.chunks,
        round(statistics.median(a.own_tokens for a in held)),
        ReplicaRates(links, prefill_ms, branch_ms=prefill_ms),
        max(statistics.fmean(a.timings.decode_s * 1e3 for a in answers), 1.0),
    )


def _measured(run: WayRun) -> HitsAndTimes:
    first_round = (a for a in run.answers if a.question.number == a.question.place)
    return _hits_and_times(
        (a.hit_share, _first_token_ms(a.timings)) for a in first_round if a.question.phase == STEADY
    )


def _first_token_ms(timings: Timings) -> float:
    return (timings.queue_s + timings.load_s + timings.prefill_s) * 1e3


def _hits_and_times(answers: Iterable[tuple[float, float]]) -> HitsAndTimes:
    hits, first_token_ms = zip(*answers, strict=True)
    return HitsAndTimes(statistics.fmean(hits), float(np.percentile(first_token_ms, 95)))
