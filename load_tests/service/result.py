"""Makes the numbers of one rate, as they are reported and stored."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from load_tests.service.sample import OK, Sample, percentile
from load_tests.service.slo import METRICS, is_good
from shared.generation.told import Usage

STAGES = ("retrieve_ms", "queue_ms", "load_ms", "select_wait_ms", "prefill_ms", "decode_ms")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Prompt tokens by where their KV came from, and generated ones; sums over all requests that
    succeeded."""

    resident: int = 0
    loaded: int = 0
    computed: int = 0
    generated: int = 0

    def share(self, name: str) -> float:
        """Of all prompt tokens."""
        part: int = getattr(self, name)
        return part / (self.resident + self.loaded + self.computed or 1)


@dataclass(frozen=True, slots=True)
class Selecting:
    """Of the requests whose tokens a selector chose.

    per_s: selections in a second of the window. busy: of the window, what auxiliary models computed; up to
    the number of selectors.
    wait_ms: that they waited for such a model, which worked for others; total_ms: in a selector; both sorted.
    stages_ms: medians of what else a selector does.
    hidden: share of all choosing that no request waited for, since its KV was being loaded meanwhile.
    """

    per_s: float
    busy: float
    wait_ms: tuple[float, ...]
    total_ms: tuple[float, ...]
    stages_ms: dict[str, float]
    hidden: float


@dataclass(frozen=True, slots=True)
class RateResult:
    """
    rate: requests per second that were meant to arrive; num_requests: those that count (warm-up left out).
    window_s: from the first counted arrival's instant to the last counted answer.
    statuses: requests by status code, OK among them; details: an example of each error.
    num_good: requests that met every limit.
    ttft_ms, tpot_ms, total_ms: of the requests that succeeded, sorted.
    stages_ms: medians of the service's own timings; overhead_ms: median of the TTFT that the engine did not
    spend.
    send_lag_ms: the 99th percentile of how late the client itself was.
    stopped_early: it could not meet the SLO any more, so the rest was not sent.
    selecting: None where no selector chose anything.
    """

    reuse: str
    rate: float
    num_requests: int
    window_s: float
    statuses: dict[str, int]
    details: dict[str, str]
    num_good: int
    holds: bool
    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]
    total_ms: tuple[float, ...]
    stages_ms: dict[str, float]
    overhead_ms: float
    tokens: Tokens
    send_lag_ms: float
    stopped_early: bool = False
    selecting: Selecting | None = None

    @property
    def good_fraction(self) -> float:
        return self.num_good / self.num_requests if self.num_requests else 0.0

    @property
    def goodput(self) -> float:
        """Requests per second that met the SLO. The window reaches to the last answer, so a backlog that is
        worked off after the last arrival does not count as throughput."""
        return self.num_good / self.window_s if self.window_s > 0 else 0.0

    @property
    def throughput(self) -> float:
        """Requests per second that were answered."""
        return self.statuses.get(OK, 0) / self.window_s if self.window_s > 0 else 0.0

    def metric_ms(self, name: str, share: float) -> float:
        """A percentile of ``ttft``, ``tpot`` or ``total``."""
        values: tuple[float, ...] = getattr(self, f"{name}_ms")
        return percentile(values, share)


@dataclass(frozen=True, slots=True)
class Count:
    """Those of a rate's samples that count. ``num_warmup``: the first so many arrivals do not."""

    num_planned: int
    num_warmup: int
    max_bad: int
    stopped_early: bool = False


def rate_result(
    reuse: str, rate: float, samples: Iterable[Sample], limits_ms: Mapping[str, float], count: Count
) -> RateResult:
    counted = [sample for sample in samples if sample.index >= count.num_warmup]
    succeeded = [sample for sample in counted if sample.ok]
    num_good = sum(is_good(sample, limits_ms) for sample in counted)
    times = {f"{name}_ms": _sorted(sample.metric_ms(name) for sample in succeeded) for name in METRICS}
    begins_s = min((sample.intended_s for sample in counted), default=0.0)
    num_requests = count.num_planned - count.num_warmup
    window_s = max((sample.ended_s for sample in counted), default=begins_s) - begins_s
    return RateResult(
        reuse=reuse,
        rate=rate,
        num_requests=num_requests,
        window_s=window_s,
        statuses=dict(Counter(sample.status for sample in counted)),
        details={sample.status: sample.detail for sample in counted if sample.detail},
        num_good=num_good,
        holds=not count.stopped_early and num_requests - num_good <= count.max_bad,
        stages_ms=stages_ms(succeeded),
        overhead_ms=statistics.median([overhead_ms(s) for s in succeeded]) if succeeded else 0.0,
        tokens=count_tokens([s.reply.usage for s in succeeded if s.reply]),
        send_lag_ms=percentile([sample.send_lag_ms for sample in counted], 0.99),
        stopped_early=count.stopped_early,
        selecting=selecting(succeeded, window_s),
        **times,
    )


def stages_ms(samples: Sequence[Sample]) -> dict[str, float]:
    """Median per stage, of samples that succeeded."""
    timings = [sample.reply.timings for sample in samples if sample.reply]
    seconds = {stage: [getattr(t, stage.replace("_ms", "_s")) for t in timings] for stage in STAGES}
    return {stage: statistics.median(values) * 1000 if values else 0.0 for stage, values in seconds.items()}


def selecting(samples: Sequence[Sample], window_s: float) -> Selecting | None:
    replies = [s.reply for s in samples if s.reply is not None and s.reply.selecting is not None]
    of_selectors = [reply.selecting for reply in replies if reply.selecting is not None]
    if not of_selectors:
        return None
    stages = {
        "load_ms": [one.load_s for one in of_selectors],
        "encode_ms": [one.encode_s for one in of_selectors],
        "score_ms": [one.score_s for one in of_selectors],
    }
    took_s = sum(reply.timings.select_s for reply in replies)
    waited_s = sum(min(reply.timings.select_wait_s, reply.timings.select_s) for reply in replies)
    return Selecting(
        per_s=len(of_selectors) / window_s if window_s > 0 else 0.0,
        busy=sum(stages["encode_ms"] + stages["score_ms"]) / window_s if window_s > 0 else 0.0,
        wait_ms=_sorted(one.wait_s * 1000 for one in of_selectors),
        total_ms=_sorted(one.total_s * 1000 for one in of_selectors),
        stages_ms={name: statistics.median(values) * 1000 for name, values in stages.items()},
        hidden=1 - waited_s / took_s if took_s > 0 else 0.0,
    )


def overhead_ms(sample: Sample) -> float:
    """The part of the client's TTFT that the engine did not spend: wire, proxies, queueing, loading,
    retrieval."""
    assert sample.reply is not None
    ttft_ms = sample.metric_ms("ttft")
    return 0.0 if ttft_ms is None else ttft_ms - sample.reply.timings.engine_ttft_s * 1000


def count_tokens(usages: Sequence[Usage]) -> Tokens:
    loaded = sum(usage.loaded_tokens for usage in usages)
    return Tokens(
        sum(usage.reused_tokens for usage in usages) - loaded,
        loaded,
        sum(usage.recomputed_tokens for usage in usages),
        sum(usage.generated_tokens for usage in usages),
    )


def _sorted(values: Iterable[float | None]) -> tuple[float, ...]:
    """Tenths of a millisecond are enough for a report."""
    return tuple(sorted(round(value, 1) for value in values if value is not None))
