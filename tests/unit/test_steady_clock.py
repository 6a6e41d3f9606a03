"""Ray Serve's controller looks after replicas and proxies whatever becomes of the clock."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable

import pytest
from ray._common import utils
from ray.serve._private import deployment_state, proxy_state
from ray.serve._private.deployment_state import ActorReplicaWrapper
from ray.serve._private.utils import call_function_from_import_path

from shared import steady_clock

HOUR_S = 3600.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Adds to the clock of the day, and undoes afterwards what the controller changes in its process."""
    monkeypatch.setattr(deployment_state, "time", time)
    monkeypatch.setattr(utils.Timer, "time", utils.Timer.time)
    real = time.time

    def add(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + seconds)

    return add


class Replica(ActorReplicaWrapper):
    """Was asked whether it is well the last time at ``asked_s``, and answered."""

    health_check_period_s = 2.0

    def __init__(self, asked_s: float) -> None:
        self._health_check_ref, self._last_health_check_time = None, asked_s


def start_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in steady_clock.environment().items():
        monkeypatch.setenv(name, value)
    call_function_from_import_path(os.environ["RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH"])


def test_a_replica_is_asked_again_after_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None]
) -> None:
    asked_s = deployment_state.time.time() - 5
    assert Replica(asked_s)._should_start_new_health_check()
    clock(-HOUR_S)
    assert not Replica(asked_s)._should_start_new_health_check()  # Serve's own way: not for an hour

    clock(0)
    start_controller(monkeypatch)
    for ahead_s in (0.0, -HOUR_S, HOUR_S):
        clock(ahead_s)
        now_s = deployment_state.time.time()
        assert Replica(now_s - 5)._should_start_new_health_check()
        assert not Replica(now_s)._should_start_new_health_check()


def test_proxies_are_looked_after_by_the_same_clock(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None]
) -> None:
    timer = inspect.signature(proxy_state.ProxyState).parameters["timer"].default
    assert isinstance(timer, utils.Timer)  # made before any controller starts
    start_controller(monkeypatch)
    before_s = timer.time()
    clock(-HOUR_S)
    assert before_s <= timer.time() < before_s + 60


def test_the_date_is_the_one_it_was_when_the_controller_started(clock: Callable[[float], None]) -> None:
    steady = steady_clock.SteadyTime()
    assert steady.time() == pytest.approx(time.time(), abs=60)
    clock(HOUR_S)
    assert steady.time() == pytest.approx(time.time() - HOUR_S, abs=60)
    assert steady.monotonic is time.monotonic
