from __future__ import annotations

import pytest

from load_tests.service.sample import NOT_SENT, percentile
from load_tests.service.slo import Limit, Slo, is_good, parse_slo
from shared.errors import InvalidRequest
from tests.unit.service_load.simulated import sample


def test_absolute_and_relative_limits_are_read() -> None:
    slo = parse_slo("ttft:500ms, tpot:0.05s,total:3x", 0.95)
    assert slo == Slo((Limit("ttft", 500), Limit("tpot", 50), Limit("total", 3, relative=True)), 0.95)
    assert slo.needs_baseline
    assert slo.limits_ms({"ttft": 7.0, "tpot": 7.0, "total": 100.0}) == {
        "ttft": 500,
        "tpot": 50,
        "total": 300,
    }
    assert not parse_slo("ttft:1s").needs_baseline


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "empty"),
        ("ttft", "'ttft'"),
        ("ttft:500", "'ttft:500'"),
        ("p99:5ms", "ttft, tpot, total"),
        ("ttft:-1ms", "'ttft:-1ms'"),
        ("ttft:0ms", "above 0"),
        ("ttft:1s,ttft:2x", "twice"),
    ],
)
def test_what_is_no_limit_is_named(text: str, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        parse_slo(text)


@pytest.mark.parametrize("fraction", [0.0, 1.1])
def test_a_fraction_is_above_0_and_at_most_1(fraction: float) -> None:
    with pytest.raises(InvalidRequest, match="slo-fraction"):
        parse_slo("ttft:1s", fraction)


def test_a_request_is_good_when_it_meets_every_limit() -> None:
    limits = {"ttft": 100.0, "tpot": 10.0}
    assert is_good(sample(ttft_ms=100, tpot_ms=10 - 1e-6), limits)
    assert not is_good(sample(ttft_ms=101, tpot_ms=5), limits)
    assert not is_good(sample(ttft_ms=50, tpot_ms=11), limits)
    assert is_good(sample(ttft_ms=50, num_tokens=1), limits), "one token has no time per further token"


@pytest.mark.parametrize("status", ["UNAVAILABLE", NOT_SENT])
def test_a_failed_request_is_never_good(status: str) -> None:
    assert not is_good(sample(status=status), {"ttft": 1e9})
    assert not is_good(sample(status=status), {})


@pytest.mark.parametrize(
    ("fraction", "count", "bad"), [(0.9, 20, 2), (0.9, 10, 1), (0.9, 9, 0), (1.0, 50, 0), (0.95, 100, 5)]
)
def test_so_many_requests_may_miss_a_limit(fraction: float, count: int, bad: int) -> None:
    assert Slo((Limit("ttft", 1),), fraction).max_bad(count) == bad


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, share) for share in (0.0, 0.2, 0.5, 0.9, 1.0)] == [1.0, 1.0, 3.0, 5.0, 5.0]
    assert percentile([], 0.5) == 0.0
