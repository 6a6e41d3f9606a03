"""The open loop, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from load_tests.service.driver import Ask, Driver, OnToken, Progress
from load_tests.service.sample import NOT_SENT, OK, Reply, Sample
from shared.errors import DeadlineExceeded, KvquiltError, Overloaded
from shared.generation.told import Timings, Usage
from tests.unit.service_load.simulated import SimulatedService
from tests.virtual_time import run_virtually, virtual_loop

REPLY = Reply(Usage(1, 0, 1, 1), Timings())


def drive(ask: Ask, arrivals: list[float], max_in_flight: int = 100) -> list[Sample]:
    async def work() -> list[Sample]:
        return await Driver(ask, max_in_flight).run(arrivals)

    return sorted(run_virtually(work()), key=lambda sample: sample.index)


def test_requests_are_sent_at_their_instants_however_long_answers_take() -> None:
    sent_s: list[float] = []

    async def stalled(number: int, on_token: OnToken) -> Reply:
        sent_s.append(virtual_loop().time())
        await asyncio.sleep(1000)
        on_token((0, 0))
        return REPLY

    samples = drive(stalled, [0.0, 0.5, 0.6, 7.0])
    assert sent_s == pytest.approx([0.0, 0.5, 0.6, 7.0])
    assert [s.metric_ms("ttft") for s in samples] == pytest.approx([1_000_000.0] * 4)


def test_a_stall_is_seen_by_every_request_that_arrived_during_it() -> None:
    """A closed loop would have seen one slow request of eleven."""
    service = SimulatedService({"full": 0.01})

    async def ask(number: int, on_token: OnToken) -> Reply:
        if number == 0:
            async with service._busy:
                await asyncio.sleep(10)
        return await service.ask(number, "full", on_token)

    ttft = [s.metric_ms("ttft") for s in drive(ask, [float(i) for i in range(11)])]
    assert all(value is not None and value > 1000 for value in ttft[:10]), ttft
    assert ttft[5] == pytest.approx(5000, rel=0.02)


def test_what_the_client_itself_is_late_counts_as_well() -> None:
    async def ask(number: int, on_token: OnToken) -> Reply:
        if number == 0:
            virtual_loop().be_busy(3.0)
        on_token((0, 0))
        return REPLY

    first, second = drive(ask, [0.0, 1.0])
    assert first.metric_ms("ttft") == pytest.approx(3000)
    assert second.send_lag_ms == pytest.approx(2000)
    assert second.metric_ms("ttft") == pytest.approx(2000)


def test_errors_become_samples_with_their_status_code() -> None:
    errors: dict[int, KvquiltError] = {1: Overloaded("no room"), 2: DeadlineExceeded("too late")}

    async def ask(number: int, on_token: OnToken) -> Reply:
        if number in errors:
            raise errors[number]
        on_token((0, 0))
        return REPLY

    samples = drive(ask, [0.0, 0.1, 0.2])
    assert [s.status for s in samples] == [OK, "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"]
    assert [s.detail for s in samples] == ["", "no room", "too late"]
    assert samples[1].metric_ms("ttft") is None


def test_a_mistake_of_the_client_is_no_error_of_the_service() -> None:
    async def ask(number: int, on_token: OnToken) -> Reply:
        raise RuntimeError("a bug")

    with pytest.raises(BaseExceptionGroup):
        drive(ask, [0.0, 0.1])


def test_beyond_the_safety_limit_requests_are_not_sent_and_counted() -> None:
    service = SimulatedService({"full": 5.0})
    samples = drive(
        lambda number, on_token: service.ask(number, "full", on_token), [0.0, 0.1, 0.2, 20.0], max_in_flight=2
    )
    assert [s.status for s in samples] == [OK, OK, NOT_SENT, OK]
    assert len(service.asked) == 3


def test_a_hopeless_run_ends_at_once_and_cancels_what_is_in_flight() -> None:
    cancelled: list[int] = []

    async def ask(number: int, on_token: OnToken) -> Reply:
        try:
            await asyncio.sleep(1000 if number else 1)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return REPLY

    def hopeless(progress: Progress) -> bool:
        return progress.overdue(2.0, from_index=1) >= 2

    async def work() -> tuple[list[Sample], float]:
        samples = await Driver(ask, 100, hopeless=hopeless).run([0.0, 1.0, 2.0, 500.0])
        return samples, virtual_loop().time()

    samples, ended_s = run_virtually(work())
    assert [s.index for s in samples] == [0]
    assert sorted(cancelled) == [1, 2]
    assert ended_s < 5


def test_time_per_token_is_of_the_longest_branch() -> None:
    async def ask(number: int, on_token: OnToken) -> Reply:
        for branch in [(0, 0), (1, 0), (0, 0), (0, 0)]:
            await asyncio.sleep(0.1)
            on_token(branch)
        return REPLY

    (only,) = drive(ask, [0.0])
    assert only.metric_ms("ttft") == pytest.approx(100)
    assert only.metric_ms("tpot") == pytest.approx(150)
    assert only.metric_ms("total") == pytest.approx(400)
