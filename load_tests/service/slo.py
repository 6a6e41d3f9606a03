"""Judges by service level objectives: limits on a request's times, and the share of requests that must stay
within all of them.

ttft:500ms,tpot:50ms      absolute: time to first token, time per further token
ttft:2x                   twice the unloaded TTFT of ``full``, which the same run measures first
total:10s                 arrival to last token
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from load_tests.service.sample import Sample
from shared.errors import InvalidRequest

METRICS = ("ttft", "tpot", "total")
_LIMIT = re.compile(r"(?P<metric>\w+):(?P<value>\d+(\.\d+)?)(?P<unit>ms|s|x)")
_MS = {"ms": 1.0, "s": 1000.0}


@dataclass(frozen=True, slots=True)
class Limit:
    """``value`` milliseconds, or, when ``relative``, so many times the unloaded value of ``full``."""

    metric: str
    value: float
    relative: bool = False


@dataclass(frozen=True, slots=True)
class Slo:
    """A rate meets it when at least ``fraction`` of its requests stay within every limit. A request that
    failed or was not sent stays within none."""

    limits: tuple[Limit, ...]
    fraction: float = 0.9

    @property
    def needs_baseline(self) -> bool:
        return any(limit.relative for limit in self.limits)

    def limits_ms(self, unloaded_ms: Mapping[str, float]) -> dict[str, float]:
        """``unloaded_ms``: of ``full``, by metric; needed for relative limits only."""
        return {
            limit.metric: limit.value * (unloaded_ms[limit.metric] if limit.relative else 1.0)
            for limit in self.limits
        }

    def max_bad(self, count: int) -> int:
        """The number of ``count`` requests that may miss a limit."""
        return count - math.ceil(self.fraction * count - 1e-9)


def parse_slo(text: str, fraction: float = 0.9) -> Slo:
    """
    Raises:
        InvalidRequest: names the part that is no limit.
    """
    if not 0 < fraction <= 1:
        raise InvalidRequest(f"--slo-fraction: must be above 0 and at most 1, got {fraction:g}")
    limits: dict[str, Limit] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        limit = _parse_limit(part)
        if limit.metric in limits:
            raise InvalidRequest(f"--slo: {limit.metric} is limited twice")
        limits[limit.metric] = limit
    if not limits:
        raise InvalidRequest("--slo: is empty; write limits such as ttft:500ms,tpot:50ms or ttft:2x")
    return Slo(tuple(limits.values()), fraction)


def is_good(sample: Sample, limits_ms: Mapping[str, float]) -> bool:
    """A metric that does not apply (``tpot`` of a single token) is within its limit."""
    if not sample.ok:
        return False
    return all(
        (value := sample.metric_ms(name)) is None or value <= limit for name, limit in limits_ms.items()
    )


def _parse_limit(part: str) -> Limit:
    match = _LIMIT.fullmatch(part)
    if match is None or match["metric"] not in METRICS:
        raise InvalidRequest(
            f"--slo: {part!r} is no limit; write METRIC:VALUE, a metric of {', '.join(METRICS)} and a "
            "value like 500ms, 2s or 2x"
        )
    value, unit = float(match["value"]), match["unit"]
    if value <= 0:
        raise InvalidRequest(f"--slo: {part!r}: must be above 0")
    return (
        Limit(match["metric"], value, relative=True)
        if unit == "x"
        else Limit(match["metric"], value * _MS[unit])
    )
