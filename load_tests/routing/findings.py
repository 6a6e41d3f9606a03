"""Finds what a simulated day says of each way of choosing, as rows and as measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from load_tests.routing.choosers import CHUNKS, RENDEZVOUS, SERVE
from load_tests.routing.plan import DAY, PHASES, Phase, token_bytes
from load_tests.routing.simulator import Day, SimulatedAnswer
from shared.measuring.report import Better, Measurement, times_better
from shared.routing.costs import Tier

LEAST_GAIN = 1.2
"""Of the day's p95 over rendezvous hashing with a load bound; below it, that ships."""


@dataclass(frozen=True, slots=True)
class PhaseFindings:
    """``chunks``: how many came from each tier; ``num_loads``: those that were brought or computed, per
    question. Milliseconds are simulated."""

    num_questions: int
    chunks: Counter[Tier]
    tier_bytes: Counter[Tier]
    ttft_p50_ms: float
    ttft_p95_ms: float

    @property
    def hit_ratio(self) -> float:
        """Chunks that were in the engine, or on their way there, for an earlier question."""
        return (self.chunks[Tier.RESIDENT] + self.chunks[Tier.ARRIVING]) / self.chunks.total()

    @property
    def num_loads(self) -> float:
        return self.chunks.total() * (1 - self.hit_ratio) / self.num_questions


@dataclass(frozen=True, slots=True)
class Findings:
    """Of one way. ``decision_ms``: the median and the 99th percentile, of questions with as many chunks as
    there are in one, by this machine's clock."""

    phases: Mapping[Phase, PhaseFindings]
    decision_ms: tuple[float, float]

    @property
    def day(self) -> PhaseFindings:
        return self.phases[DAY]


def found(day: Day) -> Findings:
    """Phases in which nobody asked are left out."""
    most = max(len(answer.question.chunks) for answer in day.answers)
    decided = [answer.decided_s * 1e3 for answer in day.answers if len(answer.question.chunks) == most]
    p50, p99 = np.percentile(decided, [50, 99])
    within = {phase: [answer for answer in day.answers if phase.covers(answer.share)] for phase in PHASES}
    phases = {phase: _of(answers) for phase, answers in within.items() if answers}
    return Findings(phases, (float(p50), float(p99)))


def measurements(ways: Mapping[str, Findings]) -> Iterator[Measurement]:
    """Ours over both others, phase by phase; then bytes by tier, and how long a decision takes."""
    ours = ways[CHUNKS.name]
    for other in (RENDEZVOUS.name, SERVE.name):
        for phase, one in ours.phases.items():
            than = ways[other].phases[phase]
            yield _over(f"ttft_p95_{phase.name}_over_{other}", one.ttft_p95_ms, than.ttft_p95_ms, "ms")
            yield _over(f"ttft_p50_{phase.name}_over_{other}", one.ttft_p50_ms, than.ttft_p50_ms, "ms")
            yield _over(f"chunk_loads_{phase.name}_over_{other}", one.num_loads, than.num_loads, "loads")
            hits = one.hit_ratio, than.hit_ratio
            yield _over(f"hit_ratio_{phase.name}_over_{other}", *hits, "fraction", "higher")
    for name, of_way in ways.items():
        for tier in Tier:
            if tier_bytes := of_way.day.tier_bytes[tier]:
                yield Measurement(f"{tier.value}_bytes_{name}", float(tier_bytes), "byte")
    for name, of_way in ways.items():
        p50, p99 = of_way.decision_ms
        yield Measurement(f"decision_ms_{name}", p50, "ms", max=p99)


def gain(ways: Mapping[str, Findings]) -> tuple[float, float]:
    """Computes how many times better ours is over rendezvous hashing, in the day's p95 and in loads."""
    ours, than = ways[CHUNKS.name].day, ways[RENDEZVOUS.name].day
    return than.ttft_p95_ms / ours.ttft_p95_ms, than.num_loads / max(ours.num_loads, 1e-9)


def verdict(ways: Mapping[str, Findings]) -> str:
    of_p95, of_loads = gain(ways)
    said = f"{of_p95:.2f} x in p95, {of_loads:.2f} x in loads over rendezvous hashing with a load bound"
    if of_p95 >= LEAST_GAIN:
        return f"routing by chunks ships: {said}"
    return f"rendezvous hashing ships: {said}, below {LEAST_GAIN} x"


def _of(answers: Sequence[SimulatedAnswer]) -> PhaseFindings:
    chunks, tier_bytes = Counter[Tier](), Counter[Tier]()
    for answer in answers:
        chunks.update(answer.tiers)
        for chunk, tier in zip(answer.question.chunks, answer.tiers, strict=True):
            tier_bytes[tier] += token_bytes(chunk.num_tokens)
    p50, p95 = np.percentile([answer.ttft_ms for answer in answers], [50, 95])
    return PhaseFindings(len(answers), chunks, tier_bytes, float(p50), float(p95))


def _over(name: str, value: float, than: float, unit: str, better: Better = "lower") -> Measurement:
    return Measurement(name, value, unit, than, times_better(value, than, better))
