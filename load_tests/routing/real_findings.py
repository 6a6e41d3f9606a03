"""Finds what real replicas say of each way of choosing: loads, hits and times to the first token, with 95 %
intervals (bootstrap over questions, the same ones of every way), and whether hits decay under novel
questions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from load_tests.routing.real_plan import NOVEL, STEADY, PlannedQuestion, RealPlan
from load_tests.service.sample import Sample
from shared.generation.told import Timings
from shared.measuring.report import Better, Measurement, times_better

OURS, DEFAULT, RENDEZVOUS = "chunks", "queue", "rendezvous"
WAYS = (DEFAULT, RENDEZVOUS, OURS)
"""As ``generator.routing`` calls them; what comes first finds what ingestion left in memory."""
AIMS = {"chunk_loads": 1.5, "ttft_p95": 1.3}
"""Times better than Serve's default."""
DECAY = 0.05
"""Of the hit ratio: what counts as falling."""
_SAMPLES = 2000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RealAnswer:
    """``hit_share``: of its chunks' tokens, those that were in the replica's memory. ``ttft_ms``: since it
    should have been sent, as its caller saw it; ``timings``: of the engine. ``context_tokens``: of its
    chunks; ``loaded_tokens``, ``own_tokens``: loaded for it, and computed whatever is held."""

    question: PlannedQuestion
    hit_share: float
    ttft_ms: float
    timings: Timings = field(default_factory=Timings)
    context_tokens: int = 0
    loaded_tokens: int = 0
    own_tokens: int = 0


@dataclass(frozen=True, slots=True)
class WayRun:
    """``failed``: questions without a whole answer, by what was said. ``told``: what its routers counted."""

    answers: Sequence[RealAnswer]
    failed: Mapping[str, int] = field(default_factory=dict)
    told: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Estimate:
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g}–{self.high:.4g})"


@dataclass(frozen=True, slots=True)
class WayFindings:
    """Of the phase in which only subjects are asked about; loads per question."""

    chunk_loads: Estimate
    hit_ratio: Estimate
    ttft_p50_ms: Estimate
    ttft_p95_ms: Estimate


@dataclass(frozen=True, slots=True)
class Gains:
    """Counts how many times better ours is."""

    chunk_loads: Estimate
    ttft_p95: Estimate


@dataclass(frozen=True, slots=True)
class Flatness:
    """Hits of subjects in each quarter of the phase with novel questions, and by how much the second half
    differs from the first one."""

    quarters: tuple[float, ...]
    change: Estimate
    count: int

    @property
    def decays(self) -> bool:
        """It fell, by more than what counts, and that is no chance."""
        return self.change.value < -DECAY and self.change.high < 0


def way_runs(
    questions: Sequence[PlannedQuestion],
    samples: Mapping[str, Sequence[Sample]],
    told: Mapping[str, Mapping[str, float]],
    prefix_len: int,
) -> dict[str, WayRun]:
    """``samples``: by way, whose ``index`` counts ``questions``. A document's chunks are as many tokens
    as were ever reused of it, without the prefix: what is less was computed beside its loading."""
    whole: defaultdict[int, int] = defaultdict(int)
    for sample in (sample for of_way in samples.values() for sample in of_way if sample.reply is not None):
        assert sample.reply is not None
        document = questions[sample.index].document
        whole[document] = max(whole[document], sample.reply.usage.reused_tokens - prefix_len)
    runs: dict[str, WayRun] = {}
    for way, of_way in samples.items():
        answers, failed = list[RealAnswer](), Counter[str]()
        for sample in of_way:
            question, ttft_ms = questions[sample.index], sample.metric_ms("ttft")
            if sample.reply is None or ttft_ms is None:
                failed[f"{sample.status} {sample.detail}".strip()] += 1
                continue
            usage, num_tokens = sample.reply.usage, max(1, whole[question.document])
            held = usage.reused_tokens - prefix_len - usage.loaded_tokens
            own = usage.prompt_tokens - prefix_len - num_tokens
            share, timings = min(1.0, max(0.0, held / num_tokens)), sample.reply.timings
            tokens = num_tokens, usage.loaded_tokens, own
            answers.append(RealAnswer(question, share, ttft_ms, timings, *tokens))
        runs[way] = WayRun(answers, failed, told.get(way, {}))
    return runs


def findings(run: WayRun, plan: RealPlan) -> WayFindings:
    hits, ttft_ms = _of_phase(run)
    return WayFindings(
        _estimate(lambda of: (1 - hits[of]).mean(-1) * plan.chunks, len(hits)),
        _estimate(lambda of: hits[of].mean(-1), len(hits)),
        _estimate(lambda of: np.percentile(ttft_ms[of], 50, axis=-1), len(hits)),
        _estimate(lambda of: np.percentile(ttft_ms[of], 95, axis=-1), len(hits)),
    )


def gains(ours: WayRun, other: WayRun) -> Gains:
    """Over the questions that both answered."""
    both = {a.question.number for a in ours.answers} & {a.question.number for a in other.answers}
    (hits, ttft_ms), (other_hits, other_ttft_ms) = (_of_phase(run, both) for run in (ours, other))

    def of_loads(of: NDArray[np.int64]) -> Floats:
        ours: Floats = np.maximum((1 - hits[of]).mean(-1), 1e-9)
        loads: Floats = (1 - other_hits[of]).mean(-1)
        return loads / ours

    def of_p95(of: NDArray[np.int64]) -> Floats:
        ours: Floats = np.percentile(ttft_ms[of], 95, axis=-1)
        return np.percentile(other_ttft_ms[of], 95, axis=-1) / ours

    return Gains(_estimate(of_loads, len(hits)), _estimate(of_p95, len(hits)))


def flatness(run: WayRun) -> Flatness:
    of_phase = [a for a in run.answers if a.question.phase == NOVEL and not a.question.novel]
    hits = np.array([a.hit_share for a in sorted(of_phase, key=lambda a: a.question.place)])
    middle = len(hits) // 2
    rng = np.random.default_rng(0)
    halves = [
        half[rng.integers(len(half), size=(_SAMPLES, len(half)))].mean(-1)
        for half in (hits[:middle], hits[middle:])
    ]
    change = halves[1] - halves[0]
    value = float(hits[middle:].mean() - hits[:middle].mean())
    quarters = tuple(float(quarter.mean()) for quarter in np.array_split(hits, 4))
    low, high = np.percentile(change, [2.5, 97.5])
    return Flatness(quarters, Estimate(value, float(low), float(high)), len(hits))


def measurements(runs: Mapping[str, WayRun], plan: RealPlan) -> Iterator[Measurement]:
    """Ours against both others, then each way's hits under novel questions."""
    found = {way: findings(run, plan) for way, run in runs.items()}
    ours, count = found[OURS], len(_of_phase(runs[OURS])[0])
    for other in (way for way in runs if way != OURS):
        suffix, than = "" if other == DEFAULT else f"_over_{other}", found[other]
        yield _over(f"chunk_loads{suffix}", ours.chunk_loads, than.chunk_loads, "loads", count)
        yield _over(f"ttft_p50{suffix}", ours.ttft_p50_ms, than.ttft_p50_ms, "ms", count)
        yield _over(f"ttft_p95{suffix}", ours.ttft_p95_ms, than.ttft_p95_ms, "ms", count)
        yield _over(f"hit_ratio{suffix}", ours.hit_ratio, than.hit_ratio, "fraction", count, "higher")
    for way, run in runs.items():
        flat = flatness(run)
        change = flat.change
        name = f"hit_ratio_change_{way}"
        yield Measurement(name, change.value, "fraction", min=change.low, max=change.high, n=flat.count)
    told = runs[OURS].told
    if told.get("decisions"):
        yield Measurement("decision_ms", told["decision_s"] / told["decisions"] * 1e3, "ms")


def verdict(runs: Mapping[str, WayRun]) -> Iterator[str]:
    """A line for each aim, reached or not; then for each way, whether its hits decay."""
    for other in (way for way in runs if way != OURS):
        over = gains(runs[OURS], runs[other])
        for name, gain in (("chunk_loads", over.chunk_loads), ("ttft_p95", over.ttft_p95)):
            yield f"{name}: {gain} times better than {other}{_judged(name, gain) if other == DEFAULT else ''}"
    for way, run in runs.items():
        flat = flatness(run)
        quarters = ", ".join(f"{quarter:.0%}" for quarter in flat.quarters)
        said = "decay" if flat.decays else "do not decay"
        yield f"{way}: hits {said} under novel questions: {quarters}; change {flat.change}"
    for way, run in runs.items():
        for said, count in run.failed.items():
            yield f"{way}: {count} questions without a whole answer: {said}"


def _judged(name: str, gain: Estimate) -> str:
    aim = AIMS[name]
    if gain.value < aim:
        return f": below the aim of {aim} x"
    return f": the aim of {aim} x is reached" + ("" if gain.low >= aim else ", within the error of this run")


def _of_phase(run: WayRun, numbers: set[int] | None = None) -> tuple[Floats, Floats]:
    """By question: the share of hits, and milliseconds to the first token."""
    of_phase = [a for a in run.answers if a.question.phase == STEADY]
    if numbers is not None:
        of_phase = [a for a in of_phase if a.question.number in numbers]
    of_phase.sort(key=lambda a: a.question.number)
    return np.array([a.hit_share for a in of_phase]), np.array([a.ttft_ms for a in of_phase])


def _estimate(statistic: Callable[[NDArray[np.int64]], Floats], count: int) -> Estimate:
    """``statistic``: of questions by their places, [..., questions] → [...]."""
    rng = np.random.default_rng(0)
    samples = statistic(rng.integers(count, size=(_SAMPLES, count)))
    low, high = np.percentile(samples, [2.5, 97.5])
    return Estimate(float(statistic(np.arange(count))), float(low), float(high))


def _over(
    name: str, ours: Estimate, than: Estimate, unit: str, count: int, better: Better = "lower"
) -> Measurement:
    ratio = times_better(ours.value, than.value, better)
    return Measurement(name, ours.value, unit, than.value, ratio, min=ours.low, max=ours.high, n=count)
