from __future__ import annotations

from itertools import pairwise

import pytest

from services.kv_store.s3.retries import Clock, Retries, Unreachable
from shared.errors import Unavailable

BUSY, ERROR = Unavailable("busy"), Unreachable("down")


class FakeClock:
    def __init__(self) -> None:
        self.now, self.pauses, self.dice = 100.0, [0.0], 0.0

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def clock(self) -> Clock:
        return Clock(lambda: self.now, self.sleep, lambda: self.dice)


def fail_until_it_gives_up(retries: Retries, error: Unavailable = ERROR) -> None:
    attempts = retries.attempts()

    def fail() -> None:
        for _ in range(1000):
            attempts.failed(error)

    with pytest.raises(Unavailable, match=error.detail):
        fail()


@pytest.mark.parametrize("dice", [0.0, 0.999])
def test_pauses_double_up_to_a_limit_and_end_within_the_time_given(dice: float) -> None:
    clock = FakeClock()
    clock.dice = dice
    fail_until_it_gives_up(Retries(30.0, clock.clock()))
    pauses = clock.pauses[1:]
    assert 15 < sum(pauses) <= 30
    assert pauses[0] < 0.06
    assert all(a <= b <= 2 * a + 1e-9 for a, b in pairwise(pauses))
    assert 1.0 <= pauses[-1] <= 2.0


def test_no_patience_means_one_attempt() -> None:
    clock = FakeClock()
    fail_until_it_gives_up(Retries(0.0, clock.clock()))
    assert clock.pauses == [0.0]


def test_after_one_call_gave_up_the_others_fail_at_once_until_one_succeeds() -> None:
    clock = FakeClock()
    retries = Retries(5.0, clock.clock())
    fail_until_it_gives_up(retries)
    waited = len(clock.pauses)
    fail_until_it_gives_up(retries)
    assert len(clock.pauses) == waited
    retries.attempts().succeeded()
    fail_until_it_gives_up(retries)
    assert len(clock.pauses) > waited


def test_a_server_that_answers_that_it_is_busy_is_asked_again_by_every_call() -> None:
    clock = FakeClock()
    retries = Retries(5.0, clock.clock())
    for _ in range(2):
        fail_until_it_gives_up(retries, BUSY)
        assert len(clock.pauses) > 5
        clock.pauses.clear()
    fail_until_it_gives_up(retries)
    clock.pauses.clear()
    retries.attempts().failed(BUSY)
    assert len(clock.pauses) == 1


def test_progress_renews_the_patience() -> None:
    clock = FakeClock()
    attempts = Retries(1.0, clock.clock()).attempts()
    for _ in range(50):
        attempts.failed(ERROR)
        clock.now += 0.9
        attempts.succeeded()
    assert clock.pauses[1:] == [clock.pauses[1]] * 50
