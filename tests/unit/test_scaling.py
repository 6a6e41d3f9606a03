"""Autoscaling by what waits, by how late answers begin and by how full replicas are."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.serve.config import AutoscalingPolicy

from shared.deployment import DeploymentConfig, serve_options
from shared.scaling import (
    QueuePolicy,
    ReplicaPressure,
    ReplicaSignals,
    ScalingConfig,
    policy_of,
    told_signals,
    wanted_replicas,
)

TARGETS = ScalingConfig(queued_ms=500, latency_ms=2000, load=0.8)
signals = st.builds(
    ReplicaSignals, st.floats(0, 1e6), st.one_of(st.just(0.0), st.floats(1, 1e5)), st.floats(0, 1)
)
fleets = st.lists(signals, min_size=1, max_size=20)


def wanted(*told: ReplicaSignals, requests: float = 1, targets: ScalingConfig = TARGETS) -> int:
    return wanted_replicas(targets, len(told), told, requests)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([ReplicaSignals()], 1),
        ([ReplicaSignals(load=0.8)], 1),
        ([ReplicaSignals(load=0.81)], 2),
        ([ReplicaSignals(load=0.5)] * 4, 3),
        ([ReplicaSignals(queued_ms=500)], 1),
        ([ReplicaSignals(queued_ms=20_500)], 2),
        ([ReplicaSignals(queued_ms=10_500, load=0.8)], 2),
        ([ReplicaSignals(latency_ms=2000)] * 3, 3),
        ([ReplicaSignals(latency_ms=3000)] * 2, 3),
        ([ReplicaSignals(latency_ms=50_000)] * 3, 6),
        ([ReplicaSignals(latency_ms=500)] * 4, 1),
        ([ReplicaSignals(latency_ms=1500), ReplicaSignals()], 2),
    ],
)
def test_so_many_are_wanted(told: list[ReplicaSignals], expected: int) -> None:
    assert wanted(*told) == expected


def test_a_latency_of_0_counts_for_nothing() -> None:
    assert wanted(ReplicaSignals(latency_ms=1e5), targets=ScalingConfig(latency_ms=0)) == 1


def test_from_nothing_there_is_one_when_somebody_asks_and_none_when_nobody_does() -> None:
    assert wanted_replicas(TARGETS, 0, [], 0) == 0
    assert wanted_replicas(TARGETS, 0, [], 3) == 1
    assert wanted(ReplicaSignals(), requests=0) == 0
    assert wanted(ReplicaSignals(), requests=0.2) == 1


@given(fleets, st.integers(0, 19), signals)
def test_more_of_it_never_wants_fewer(told: list[ReplicaSignals], at: int, more: ReplicaSignals) -> None:
    now = told[at % len(told)]
    grown = ReplicaSignals(
        now.queued_ms + more.queued_ms,
        now.latency_ms + more.latency_ms if now.latency_ms else 0.0,
        min(1.0, now.load + more.load),
    )
    worse = [grown if number == at % len(told) else other for number, other in enumerate(told)]
    assert wanted(*worse) >= wanted(*told)


@given(fleets)
def test_demand_is_bounded_by_what_waits_and_by_twice_what_is_there(told: list[ReplicaSignals]) -> None:
    waiting = sum(max(0.0, replica.queued_ms - 500) for replica in told) / 10_000
    assert 1 <= wanted(*told) <= math.ceil(2 * len(told) + waiting)


@given(st.floats(0.01, 30), st.integers(1, 30))
def test_a_steady_load_leads_to_the_number_that_carries_it_and_stays_there(load: float, start: int) -> None:
    """Replicas share the load evenly, what is too much for them waits, and answers are the later the fuller
    they are."""
    running, seen, queued_ms = start, [], 0.0
    for _ in range(80):
        each = load / running
        queued_ms = max(0.0, queued_ms + (each - 1) * 5000)
        latency_ms = 400 / max(0.05, 1 - min(each, 0.95)) + queued_ms
        told = [ReplicaSignals(queued_ms, latency_ms, min(each, 1.0))] * running
        running = max(1, wanted(*told))
        queued_ms = queued_ms * len(told) / running
        seen.append(running)
    assert len(set(seen[-20:])) == 1
    assert load / running <= 0.8 + 1e-6
    assert running <= math.ceil(load / 0.8) + 1


def test_signals_are_of_the_time_since_they_were_asked_for() -> None:
    now = [0.0]
    pressure = ReplicaPressure(lambda: now[0])
    for _ in range(200):
        pressure.worked(0.1)
    pressure.answered(1.0)
    pressure.answered(2.0)
    now[0] = 40.0
    told = pressure.signals(3)
    assert told == pytest.approx({"queued_ms": 300.0, "latency_ms": 1500.0, "load": 0.5}, rel=1e-3)
    now[0] = 41.0
    assert pressure.signals(0, share=0.25) == {"queued_ms": 0.0, "latency_ms": 0.0, "load": 0.25}


def test_requests_that_run_and_have_not_answered_keep_others_waiting() -> None:
    pressure = ReplicaPressure(lambda: 0.0)
    assert pressure.signals(0, ahead_ms=800.0)["queued_ms"] == 800.0
    for _ in range(200):
        pressure.worked(0.1)
    assert pressure.signals(9, ahead_ms=800.0)["queued_ms"] == pytest.approx(900.0)


def test_a_busy_replica_is_full_at_most() -> None:
    pressure = ReplicaPressure(lambda: 0.0)
    pressure.worked(100.0)
    assert pressure.signals(0)["load"] == 1.0


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf"), -5.0])
def test_what_is_no_number_counts_as_nothing(nonsense: float) -> None:
    metrics = {
        "queued_ms": {"a": nonsense, "b": 7.0},
        "latency_ms": {"a": nonsense},
        "load": {"b": 9.0, "a": nonsense},
        "other": {"c": 1.0},
    }
    assert told_signals(metrics) == [ReplicaSignals(), ReplicaSignals(7.0, 0.0, 1.0), ReplicaSignals()]


def context(**values: Any) -> Any:
    given = {"aggregated_metrics": {}, "current_num_replicas": 0, "target_num_replicas": 0}
    return SimpleNamespace(**{**given, "total_num_requests": 0.0, **values})


def test_serve_makes_the_policy_from_its_configuration_and_asks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Read from its pickle in this process, the class is given fields whose MISSING is another one.
    monkeypatch.setattr(ScalingConfig, "__dataclass_fields__", ScalingConfig.__dataclass_fields__)
    made = AutoscalingPolicy(**policy_of(TARGETS))
    policy = made.get_policy()(**made.policy_kwargs)
    assert policy(context(total_num_requests=2.0)) == (1, {})
    busy = {"load": {"a": 1.0, "b": 1.0}, "queued_ms": {"a": 0.0, "b": 0.0}}
    assert policy(context(current_num_replicas=2, target_num_replicas=2, aggregated_metrics=busy)) == (3, {})


def test_replicas_that_have_said_nothing_yet_change_nothing() -> None:
    policy = QueuePolicy(500, 2000, 0.8)
    assert policy(context(current_num_replicas=2, target_num_replicas=3, total_num_requests=9)) == (3, {})


@pytest.mark.parametrize(
    "values", [{"load": 0.0}, {"load": 1.5}, {"load": math.nan}, {"queued_ms": -1}, {"latency_ms": math.nan}]
)
def test_impossible_targets_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"^scaling.{next(iter(values))}: must be"):
        ScalingConfig(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_replicas": 0}, "num_replicas: 0 needs a max_replicas"),
        ({"num_replicas": 3, "max_replicas": 2}, "max_replicas: must be 0 or at least num_replicas"),
        ({"num_replicas": -1}, "num_replicas"),
        ({"downscale_delay_s": -1}, "downscale_delay_s"),
    ],
)
def test_impossible_bounds_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DeploymentConfig(**values)


def test_a_replica_that_is_taken_away_may_finish_its_longest_answer() -> None:
    fixed = serve_options(SimpleNamespace(deployment=DeploymentConfig(num_replicas=2)))
    assert (fixed["num_replicas"], fixed["graceful_shutdown_timeout_s"]) == (2, 20.0)
    scaled = DeploymentConfig(num_replicas=0, max_replicas=2, upscale_delay_s=1)
    options = serve_options(SimpleNamespace(deployment=scaled, scaling=TARGETS))
    assert options["graceful_shutdown_timeout_s"] == 600.0
    assert options["autoscaling_config"] == {
        "min_replicas": 0,
        "max_replicas": 2,
        "target_ongoing_requests": 8,
        "look_back_period_s": 15.0,
        "upscale_delay_s": 1,
        "downscale_delay_s": 300.0,
        "policy": policy_of(TARGETS),
    }
    assert "policy" not in serve_options(SimpleNamespace(deployment=scaled))["autoscaling_config"]
