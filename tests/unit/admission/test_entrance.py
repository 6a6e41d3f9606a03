"""A principal takes what it may, and is told when it may come again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.admission import entrance as entrances
from shared.admission.bucket import Bucket
from shared.admission.entrance import Entrance
from shared.admission.memory import BYTES_PER_BYTE, MemoryBudget, default_budget_bytes, estimate_bytes
from shared.admission.settings import PrincipalLimits
from shared.config import load
from shared.errors import ConfigError, Overloaded
from shared.principals.principal import Principal, Role


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def principal(tenant: str = "acme", name: str = "key-1") -> Principal:
    return Principal(name, tenant, frozenset([Role.WRITER]))


def door(clock: Clock, memory: MemoryBudget | None = None, **limits: object) -> Entrance:
    return Entrance(load(PrincipalLimits, limits), memory, clock)


@pytest.fixture
def open_calls() -> Iterator[ExitStack]:
    with ExitStack() as calls:
        yield calls


def call(one: Entrance, who: Principal | None = None, counted: bool = True) -> AbstractContextManager[None]:
    return one.entered(who or principal(), 10, counted)


def refusal(one: Entrance, who: Principal | None = None) -> Overloaded:
    with pytest.raises(Overloaded) as refused, call(one, who):
        pass
    one.check_invariants()
    return refused.value


def test_who_calls_too_often_is_told_the_limit_and_when_to_come_again(clock: Clock) -> None:
    one = door(clock, requests_per_s=2, burst_s=1.5)
    for _ in range(3):
        with call(one):
            pass
    refused = refusal(one)
    assert refused.detail == (
        "key-1 of tenant acme calls more often than the 2 times per second that "
        "limits.per_principal.requests_per_s allows; retry in 0.5 s"
    )
    clock.now_s += refused.retry_after_s or 0
    with call(one):
        pass
    refusal(one)


def test_others_are_not_held_to_what_one_took(clock: Clock) -> None:
    one = door(clock, requests_per_s=1, burst_s=1)
    for who in (principal(), principal(name="key-2"), principal("other")):
        with call(one, who):
            pass
        refusal(one, who)


def test_tokens_are_owed_until_they_are_paid_for(clock: Clock) -> None:
    one = door(clock, tokens_per_s=100, burst_s=2)
    with call(one):
        one.spend(principal(), 500)
    refused = refusal(one)
    assert "used more than the 100 tokens per second that limits.per_principal.tokens_per_s" in refused.detail
    assert refused.retry_after_s == pytest.approx(3.01)
    clock.now_s += 3.02
    with call(one):
        pass


def test_calls_under_way_are_counted_until_they_end(clock: Clock, open_calls: ExitStack) -> None:
    one = door(clock, concurrent=2)
    open_calls.enter_context(call(one))
    with call(one):
        assert "has 2 calls under way, as many as limits.per_principal.concurrent" in refusal(one).detail
        with call(one, principal("other")):
            pass
    with call(one):
        pass


def test_a_refused_call_takes_nothing(clock: Clock) -> None:
    one = door(clock, requests_per_s=1, burst_s=1, concurrent=1)
    with call(one):
        for _ in range(5):
            refusal(one)
    clock.now_s += 1
    with call(one):
        pass


def test_what_services_ask_of_each_other_is_not_counted(clock: Clock) -> None:
    one = door(clock, requests_per_s=1, burst_s=1, concurrent=1)
    with ExitStack() as calls:
        for _ in range(5):
            calls.enter_context(call(one, counted=False))
        calls.enter_context(call(one))
        one.check_invariants()


def test_a_tenant_and_one_of_its_principals_may_have_limits_of_their_own() -> None:
    limits = load(
        PrincipalLimits,
        {
            "requests_per_s": 5,
            "of": {"acme": {"requests_per_s": 50, "weight": 2}, "acme/nightly": {"concurrent": 3}},
        },
    )
    nightly, key, other = (
        limits.allowance(who) for who in (principal(name="nightly"), principal(), principal("other"))
    )
    assert (nightly.requests_per_s, nightly.weight, nightly.concurrent) == (50, 2, 3)
    assert (key.requests_per_s, key.weight, key.concurrent) == (50, 2, 256)
    assert (other.requests_per_s, other.weight) == (5, 1)


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"requests_per_s": -1}, "requests_per_s: must not be negative"),
        ({"concurrent": 0}, "concurrent: must be at least 1"),
        ({"burst_s": 0}, "burst_s: must be above 0"),
        ({"weight": float("nan")}, "weight: must be above 0"),
        ({"stored_bytes": -1}, "stored_bytes: must not be negative"),
        ({"stored_bytes": "1 GB"}, "stored_bytes: "),
        ({"of": {"acme/key/anna": {"stored_bytes": -1}}}, "of.acme/key/anna.stored_bytes: must not be"),
        ({"of": {"acme": {"weight": 0}}}, "of.acme.weight: must be above 0"),
        ({"of": {"acme": {"speed": 1}}}, "of.acme.speed: unknown setting"),
    ],
)
def test_a_wrong_limit_is_named(limits: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load(PrincipalLimits, limits)


def test_whoever_was_not_seen_for_long_is_forgotten(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrances, "_REMEMBERED", 3)
    one = door(clock, requests_per_s=1, burst_s=1)
    with call(one, principal("stays")):
        for number in range(20):
            clock.now_s += 2
            with call(one, principal(f"t{number}")):
                pass
        assert len(one._accounts) <= 4
        assert ("stays", "key-1") in one._accounts


@given(
    st.floats(0.01, 1000),
    st.floats(0.01, 100),
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 500)), max_size=30),
)
def test_a_bucket_gives_no_more_than_its_size_and_what_ran_in(
    rate: float, burst_s: float, takes: list[tuple[float, float]]
) -> None:
    now_s, taken = 0.0, 0.0
    bucket = Bucket(rate, burst_s, now_s)
    for pause_s, units in takes:
        now_s += pause_s
        if not bucket.wait_s(now_s, units):
            bucket.take(now_s, units)
            taken += min(units, max(1.0, rate * burst_s))
    assert taken <= (max(1.0, rate * burst_s) + rate * now_s) * 1.001


def test_requests_that_exceed_the_memory_together_are_refused(clock: Clock) -> None:
    one = door(clock, MemoryBudget(100 * BYTES_PER_BYTE))
    with one.entered(principal(), 60):
        with pytest.raises(Overloaded, match=r"this one of 50 bytes .* \(deployment.memory_bytes\); retry"):
            one.entered(principal(), 50, False).__enter__()
        with one.entered(principal(), 40):
            pass
    with one.entered(principal(), 100):
        pass
    one.check_invariants()


def test_one_that_is_larger_than_the_memory_is_served_alone(clock: Clock) -> None:
    one = door(clock, MemoryBudget(100))
    with one.entered(principal(), 1000), pytest.raises(Overloaded), one.entered(principal(), 1):
        pass
    with one.entered(principal(), 1):
        pass


def test_a_document_takes_less_for_a_byte_than_token_ids_do() -> None:
    assert estimate_bytes(1000) == 1000 * BYTES_PER_BYTE
    assert estimate_bytes(128 << 20) < 600 << 20


def test_the_budget_is_a_part_of_what_the_container_has(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("4000000\n")
    assert default_budget_bytes(limit) == 1_000_000
    limit.write_text("max\n")
    assert default_budget_bytes(limit) == default_budget_bytes(tmp_path / "none") > 1_000_000
