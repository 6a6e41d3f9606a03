"""How long passes take: at once where they have ended when they return, later where a device goes on."""

from __future__ import annotations

import pytest
import torch

from shared.engine.model.pass_times import PassTimes, device_event


class Device:
    """Its events are reached when ``now_ms`` comes to them; each takes 5 ms from the one before."""

    def __init__(self) -> None:
        self.now_ms = self.ordered_ms = 0.0

    def event(self) -> Event:
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self._device, self.at_ms = device, 0.0

    def record(self) -> None:
        self._device.ordered_ms += 5
        self.at_ms = self._device.ordered_ms

    def query(self) -> bool:
        return self._device.now_ms >= self.at_ms

    def elapsed_time(self, end_event: Event) -> float:
        return end_event.at_ms - self.at_ms


def test_a_pass_that_has_ended_is_told_at_once_and_one_that_failed_is_not() -> None:
    told: list[tuple[float, int]] = []
    now_s = [10.0]
    times = PassTimes(lambda *one: told.append(one), clock=lambda: now_s[0])
    with times.measured(64):
        now_s[0] += 2
    with pytest.raises(RuntimeError), times.measured(64):
        raise RuntimeError
    assert told == [(2.0, 64)]


def test_a_pass_of_a_device_is_told_once_it_has_ended_there() -> None:
    told: list[tuple[float, int]] = []
    device = Device()
    times = PassTimes(lambda *one: told.append(one), device.event)
    for num_rows in (64, 65):
        with times.measured(num_rows):
            pass
    assert told == []
    device.now_ms = 10
    with times.measured(66):
        pass
    assert told == [(0.005, 64)]


def test_a_cpu_has_no_events() -> None:
    assert device_event(torch.device("cpu")) is None
