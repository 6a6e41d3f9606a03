"""Decides how many replicas of a service that computes are wanted: by how long what waits there takes, how late
its answers begin, and how full its replicas are.

    replica ──▶ signals (``ReplicaPressure``), every few seconds ──▶ Serve's controller: ``QueuePolicy`` ──▶ replicas

Requests under way alone, by which Serve scales unless told otherwise, say little here: a stream that decodes
slowly, or a forest that waits for its caller, costs next to nothing, and one long prefill holds up everybody.
"""  # noqa: E501

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_KEPT = 0.9
_CATCH_UP_MS = 10_000.0
"""Work that waits too long is spread over so many replicas that it is done within this time."""
_STEEPEST = 2.0
"""Late answers double the replicas at most: what else may make them late, replicas do not mend."""


@dataclass(frozen=True, slots=True)
class ScalingConfig:
    """
    queued_ms: milliseconds of work that may wait at a replica before another one is wanted.
    latency_ms: milliseconds after which answers should begin (a selector's: in which it should have chosen),
    in the mean; 0: it does not count.
    load: the part of what a replica can do at which it counts as full: of its time that goes into prefill (a
    selector's: into its model), or of the branches that may run at once, whichever is more.
    """

    queued_ms: float = 500.0
    latency_ms: float = 2000.0
    load: float = 0.8

    def __post_init__(self) -> None:
        for name in ("queued_ms", "latency_ms"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"scaling.{name}: must be at least 0, got {getattr(self, name)}")
        if not 0 < self.load <= 1:  # True for NaN
            raise ValueError(f"scaling.load: must be above 0 and at most 1, got {self.load}")


@dataclass(frozen=True, slots=True)
class ReplicaSignals:
    """What a replica says of itself. ``queued_ms``: how long what waits there will take. ``latency_ms``: mean
    of what it answered lately; 0: nothing. ``load``: see ``ScalingConfig``."""

    queued_ms: float = 0.0
    latency_ms: float = 0.0
    load: float = 0.0


class ReplicaPressure:
    """Works a replica's signals out of what it does. Used by one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()
        self._work_s = 0.0
        self._worked_s = self._latency_s = 0.0
        self._num_answered = 0

    @property
    def work_ms(self) -> float:
        """For how long a request keeps others waiting, lately."""
        return self._work_s * 1e3

    def worked(self, seconds: float) -> None:
        """A request kept others waiting for so long."""
        self._work_s = _KEPT * self._work_s + (1 - _KEPT) * seconds
        self._worked_s += seconds

    def answered(self, latency_s: float) -> None:
        """An answer began so long after its question."""
        self._latency_s += latency_s
        self._num_answered += 1

    def signals(self, waiting: int, share: float = 0.0, ahead_ms: float = 0.0) -> dict[str, float]:
        """Since the last call. ``waiting``: requests that have not begun; ``share``: of the places for
        requests that run at once; ``ahead_ms``: of work that is known, also that of
        requests that run and have not answered yet."""
        now = self._clock()
        latency_s = self._latency_s / self._num_answered if self._num_answered else 0.0
        load = min(max(share, self._worked_s / max(now - self._since, 1e-3)), 1.0)
        self._since, self._worked_s, self._latency_s, self._num_answered = now, 0.0, 0.0, 0
        queued_ms = max(waiting * self.work_ms, ahead_ms)
        return asdict(ReplicaSignals(queued_ms, latency_s * 1e3, load))


def wanted_replicas(
    targets: ScalingConfig, running: int, told: Sequence[ReplicaSignals], requests: float
) -> int:
    """Number of replicas, within no bounds. ``running``: replicas there are, of which some have ``told``;
    ``requests``: on their way anywhere.

    Less is wanted as soon as fewer replicas would do: with their load, and with latencies that grew as if
    all of them were waiting for one another.
    """
    if not running or not told:
        return max(running, 1 if requests > 0 else 0)
    demand = sum(signals.load for signals in told) / targets.load
    demand += sum(max(signals.queued_ms - targets.queued_ms, 0.0) for signals in told) / _CATCH_UP_MS
    latencies_ms = [signals.latency_ms for signals in told if signals.latency_ms > 0]
    if targets.latency_ms and latencies_ms:
        lateness = sum(latencies_ms) / len(latencies_ms) / targets.latency_ms
        demand = max(demand, running * min(lateness, _STEEPEST))
    return max(math.ceil(demand - 1e-9), 1 if requests > 0 else 0)


class QueuePolicy:
    """A policy of Ray Serve, which keeps it within the deployment's bounds and waits its delays out."""

    def __init__(self, queued_ms: float, latency_ms: float, load: float) -> None:
        self._targets = ScalingConfig(queued_ms, latency_ms, load)

    def __call__(self, ctx: Any) -> tuple[int, dict[str, Any]]:
        """``ctx``: ``ray.serve.config.AutoscalingContext``."""
        told = told_signals(ctx.aggregated_metrics or {})
        if ctx.current_num_replicas and not told:  # they have said nothing yet
            return ctx.target_num_replicas, {}
        return wanted_replicas(self._targets, ctx.current_num_replicas, told, ctx.total_num_requests), {}


def told_signals(metrics: Mapping[str, Mapping[Any, float]]) -> list[ReplicaSignals]:
    """By metric and replica, as Serve has them. What is no sensible number counts as 0."""
    replicas = dict.fromkeys(replica for values in metrics.values() for replica in values)

    def value(name: str, replica: object) -> float:
        told = metrics.get(name, {}).get(replica, 0.0)
        return told if 0 < told < math.inf else 0.0

    return [
        ReplicaSignals(
            value("queued_ms", replica), value("latency_ms", replica), min(value("load", replica), 1.0)
        )
        for replica in replicas
    ]


def policy_of(targets: ScalingConfig) -> dict[str, Any]:
    """``policy`` of Serve's ``autoscaling_config``."""
    return {
        "policy_function": f"{QueuePolicy.__module__}:{QueuePolicy.__name__}",
        "policy_kwargs": asdict(targets),
    }
