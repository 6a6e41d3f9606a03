"""Works out what `kvquilt top` shows, from two texts in Prometheus's format and the time between them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from prometheus_client.parser import text_string_to_metric_families

from shared.errors import Unavailable

Labels = Mapping[str, str]


class MetricsLook:
    """The series of one instant, ``at_s`` of some clock, by the texts of several machines."""

    def __init__(self, texts: Iterable[str], at_s: float) -> None:
        """
        Raises:
            Unavailable: a text is none of Prometheus's.
        """
        self.at_s = at_s
        self._series: defaultdict[str, list[tuple[Labels, float]]] = defaultdict(list)
        try:
            for family in chain.from_iterable(map(text_string_to_metric_families, texts)):
                for sample in family.samples:
                    self._series[sample.name].append((sample.labels, sample.value))
        except ValueError as error:
            raise Unavailable(f"what was told is no text of Prometheus's: {error}") from None

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums by the values of a label."""
        sums: defaultdict[str, float] = defaultdict(float)
        for labels, value in self._series[name]:
            sums[labels.get(label, "")] += value
        return dict(sums)

    def sum(self, name: str) -> float:
        return sum(value for _, value in self._series[name])

    def each(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        return {tuple(sorted(labels.items())): value for labels, value in self._series[name]}


@dataclass(frozen=True, slots=True)
class ServiceFigures:
    """Of all replicas of a service; ``replicas``: processes of the machine."""

    replicas: int
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class TierFigures:
    """``capacity_bytes`` 0: as much as fits."""

    chunks: int
    num_bytes: float
    capacity_bytes: float
    loaded_per_s: float


@dataclass(frozen=True, slots=True)
class TopFigures:
    """Of the last ``over_s`` seconds, and now. Times are in seconds; None: nothing ended meanwhile.
    ``prompt_share``: tokens of prompts by where their KV came from."""

    over_s: float
    answers_per_s: float
    failures_per_s: Mapping[str, float]
    by_mode_per_s: Mapping[str, float]
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    token_p50_s: float | None
    tokens_per_s: float
    answering: int
    running: int
    waiting: int
    resident_bytes: float
    resident_capacity_bytes: float
    prompt_share: Mapping[str, float]
    tiers: Mapping[str, TierFigures]
    documents: int
    services: Mapping[str, ServiceFigures]


_NO_FAILURES = ("OK", "REFUSED", "CANCELLED")
_SOURCES = {"local_cache_hit": "memory", "external_kv_transfer": "store", "local_compute": "computed"}


def figures_of(before: MetricsLook, now: MetricsLook) -> TopFigures:
    over_s = max(now.at_s - before.at_s, 1e-9)

    def rates(name: str, label: str) -> dict[str, float]:
        of_both = sorted(_growth(before, now, name, label).items())
        return {value: grown / over_s for value, grown in of_both if grown}

    codes = rates("kvquilt_answers_total", "code")
    sources = _growth(before, now, "kvquilt_prompt_tokens_by_source_total", "source")
    total = sum(sources.values())
    ttft = _grown_buckets(before, now, "kvquilt_answer_time_to_first_token_seconds_bucket")
    between = _grown_buckets(before, now, "kvquilt_inter_token_latency_seconds_bucket")
    memory = now.by("process_resident_memory_bytes", "application")
    replicas: defaultdict[str, set[str]] = defaultdict(set)
    for key in now.each("process_resident_memory_bytes"):
        labels = dict(key)
        replicas[labels.get("application", "")].add(labels.get("replica", ""))
    return TopFigures(
        over_s,
        sum(codes.values()),
        {code: rate for code, rate in codes.items() if code not in _NO_FAILURES},
        rates("kvquilt_answers_total", "mode"),
        quantile(ttft, 0.5),
        quantile(ttft, 0.95),
        quantile(between, 0.5),
        sum(rates("kvquilt_generation_tokens_total", "model_name").values()),
        int(now.sum("kvquilt_answers_running")),
        int(now.sum("kvquilt_num_requests_running")),
        int(now.sum("kvquilt_num_requests_waiting")),
        now.sum("kvquilt_resident_bytes"),
        now.sum("kvquilt_resident_capacity_bytes"),
        {told: sources.get(source, 0) / total for source, told in _SOURCES.items()} if total else {},
        dict(_tiers(now, rates("kvquilt_loaded_chunks_total", "tier"))),
        int(now.sum("kvquilt_store_documents")),
        {name: ServiceFigures(len(replicas[name]), memory[name]) for name in sorted(replicas) if name},
    )


def _tiers(now: MetricsLook, loaded_per_s: Mapping[str, float]) -> Iterator[tuple[str, TierFigures]]:
    chunks, sizes = (now.by(f"kvquilt_store_{what}", "tier") for what in ("chunks", "bytes"))
    capacities = now.by("kvquilt_store_capacity_bytes", "tier")
    for tier in sorted(chunks.keys() | loaded_per_s.keys()):
        of = int(chunks.get(tier, 0)), sizes.get(tier, 0.0), capacities.get(tier, 0.0)
        yield tier, TierFigures(*of, loaded_per_s.get(tier, 0.0))


def _growth(before: MetricsLook, now: MetricsLook, name: str, label: str) -> dict[str, float]:
    """Of counters, by a label. One that is smaller than it was began anew: it counts as it is."""
    old, grown = before.each(name), defaultdict[str, float](float)
    for key, value in now.each(name).items():
        was = old.get(key, 0.0)
        grown[dict(key).get(label, "")] += value - was if value >= was else value
    return dict(grown)


def _grown_buckets(before: MetricsLook, now: MetricsLook, name: str) -> list[tuple[float, float]]:
    """Upper bounds and how many were at most that, ascending."""
    return sorted((float(bound), grown) for bound, grown in _growth(before, now, name, "le").items())


def quantile(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """As Prometheus's ``histogram_quantile``: even within a bucket; what is in the last one, which has no
    upper bound, counts as its lower one."""
    if not buckets or not (total := buckets[-1][1]):
        return None
    lower, below = 0.0, 0.0
    for bound, at_most in buckets:
        if at_most >= share * total:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * (share * total - below) / (at_most - below)
        lower, below = bound, at_most
    return lower
