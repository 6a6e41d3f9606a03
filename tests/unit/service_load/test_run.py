"""A whole run against a service of known capacity, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from load_tests.service.arrivals import read_trace
from load_tests.service.plan import LoadPlan, parse_rates, parse_reuse
from load_tests.service.run import LoadFindings, LoadRun
from load_tests.service.slo import parse_slo
from shared.errors import InvalidRequest, KvquiltError, Overloaded, Unavailable
from shared.generation.modes import ReuseMode
from tests.unit.service_load.simulated import SimulatedService, Witness
from tests.virtual_time import run_virtually

BOTH = parse_reuse("full,reordered")
PLAN = LoadPlan(parse_slo("ttft:2x"), BOTH, min_requests=100)


def find(service: SimulatedService, plan: LoadPlan) -> tuple[LoadFindings, Witness]:
    witness = Witness()
    return run_virtually(LoadRun(service, plan, witness).findings()), witness


def fast_and_slow() -> SimulatedService:
    """``full`` answers at most 1 request per second, ``reordered`` at most 10."""
    return SimulatedService({"full": 1.0, "reordered": 0.1}, num_tokens=1)


def best(findings: LoadFindings, mode: str) -> float:
    return max(result.rate for result in findings.rates if result.reuse == mode and result.holds)


def test_a_search_finds_what_each_mode_sustains() -> None:
    findings, _ = find(fast_and_slow(), PLAN)
    assert findings.limits_ms == {"ttft": pytest.approx(2000)}
    # A queue of one request's length in front of 90 %: with random arrivals well below the capacity.
    assert 0.3 < best(findings, "full") < 0.75
    # 2 s are twenty requests' time: nearly the whole capacity.
    assert 7.5 < best(findings, "reordered") < 10.5
    failing = [result.rate for result in findings.rates if result.reuse == "reordered" and not result.holds]
    assert min(failing) <= best(findings, "reordered") * PLAN.precision


def test_first_tokens_over_http_are_compared_with_those_of_the_same_requests_over_grpc() -> None:
    grpc, http = (SimulatedService({"full": 1.0, "reordered": 0.1}, wire_s=s) for s in (0.01, 0.03))
    plan = replace(PLAN, rates=(0.1,), num_streams=0, num_quality=0)
    findings = run_virtually(LoadRun(grpc, plan, Witness(), http).findings())
    both = findings.both_ways
    assert both is not None
    assert both.reuse == "reordered", "the quickest: least of the engine's own scatter"
    assert len(both.grpc_ttft_ms) == len(both.http_ttft_ms) == plan.http_rounds * plan.num_unloaded
    assert both.http_ttft_ms == pytest.approx([130.0] * len(both.http_ttft_ms))
    assert [m.value for m in both.measurements()] == pytest.approx([130.0, 20.0])
    assert both.measurements()[0].baseline == pytest.approx(110.0)
    warming, asked = http.asked[:2], http.asked[2:]
    assert {number for number, _ in warming} <= {number for number, _ in asked} <= {n for n, _ in grpc.asked}


def test_goodput_never_exceeds_what_the_service_can_do() -> None:
    findings, _ = find(fast_and_slow(), PLAN)
    for result in findings.rates:
        if not result.stopped_early:
            assert result.goodput <= (1.0 if result.reuse == "full" else 10.0) * 1.001


def test_a_failing_rate_of_a_search_is_given_up_early() -> None:
    service = fast_and_slow()
    findings, _ = find(service, PLAN)
    stopped = [result for result in findings.rates if result.stopped_early]
    assert stopped
    assert all(not result.holds and sum(result.statuses.values()) < result.num_requests for result in stopped)


def test_a_list_of_rates_is_measured_to_the_end_even_when_hopeless() -> None:
    findings, witness = find(
        fast_and_slow(), replace(PLAN, reuse=(ReuseMode.FULL,), rates=(0.2, 5.0), duration_s=60.0)
    )
    assert [(r.rate, r.holds, r.stopped_early) for r in findings.rates] == [
        (0.2, True, False),
        (5.0, False, False),
    ]
    assert [r.num_requests for r in findings.rates] == [11, 270]
    assert tuple(witness.results) == findings.rates
    assert 0.85 < findings.rates[1].throughput <= 1.001, "the capacity, less what the warm-up left behind"


def test_the_first_arrivals_do_not_count() -> None:
    def cold(number: int) -> KvquiltError | None:
        return Unavailable("still starting") if 0 <= number < 10 else None

    service = replace(fast_and_slow(), fail=cold)
    findings, _ = find(
        service,
        replace(PLAN, reuse=(ReuseMode.REORDERED,), rates=(2.0,), duration_s=50.0, warmup=0.1, num_quality=0),
    )
    (result,) = findings.rates
    assert (result.num_requests, result.statuses, result.holds) == (90, {"OK": 90}, True)


def test_errors_miss_the_slo_however_fast_they_are() -> None:
    def overloaded(number: int) -> KvquiltError | None:
        return Overloaded("no room") if number >= 0 and number % 4 == 0 else None

    service = replace(fast_and_slow(), fail=overloaded)
    plan = replace(
        PLAN,
        slo=parse_slo("ttft:10s"),
        reuse=(ReuseMode.REORDERED,),
        rates=(1.0,),
        duration_s=100.0,
        warmup=0.0,
        num_quality=0,
    )
    (result,) = find(service, plan)[0].rates
    assert result.statuses == {"OK": 75, "RESOURCE_EXHAUSTED": 25}
    assert result.details == {"RESOURCE_EXHAUSTED": "no room"}
    assert (result.num_good, result.good_fraction, result.holds) == (75, 0.75, False)
    assert len(result.ttft_ms) == 75, "an error has no latency"


def test_what_the_wire_adds_is_told_apart_from_the_engine() -> None:
    service = SimulatedService({"full": 1.0, "reordered": 0.1}, token_s=0.01, num_tokens=5, wire_s=0.02)
    findings, _ = find(service, replace(PLAN, rates=(0.1,), num_streams=4))
    for unloaded in findings.unloaded:
        assert unloaded.overhead_ms == pytest.approx([20.0] * PLAN.num_unloaded)
    # Four requests take turns of 140 ms behind 20 ms of wire; the last one's own time is what the engine
    # names.
    assert findings.token_overhead_ms == pytest.approx([(20 + 4 * 140 - 140) / 20] * PLAN.stream_rounds)


def test_a_relative_slo_measures_full_even_if_only_another_mode_is_compared() -> None:
    service = fast_and_slow()
    findings, _ = find(service, replace(PLAN, reuse=(ReuseMode.REORDERED,), rates=(1.0,), num_quality=0))
    assert [unloaded.reuse for unloaded in findings.unloaded] == ["full", "reordered"]
    assert {result.reuse for result in findings.rates} == {"reordered"}
    absolute = fast_and_slow()
    find(
        absolute,
        replace(PLAN, slo=parse_slo("ttft:1s"), reuse=(ReuseMode.REORDERED,), rates=(1.0,), num_quality=0),
    )
    assert {mode for _, mode in absolute.asked} == {"reordered"}


def test_requests_outside_the_load_are_not_repeated_in_it() -> None:
    service = fast_and_slow()
    find(service, replace(PLAN, reuse=(ReuseMode.REORDERED,), rates=(1.0,), num_quality=0))
    assert [number for number, _ in service.asked if number >= 0] == list(range(30))


def test_answers_are_compared_with_full() -> None:
    findings, _ = find(fast_and_slow(), replace(PLAN, rates=(0.1,)))
    (agreed,) = findings.quality
    assert (agreed.reuse, agreed.num_branches, agreed.same) == ("reordered", PLAN.num_quality, 1.0)


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("0\n1\n1\n4\n")
    trace = read_trace(tmp_path / "trace")
    plan = replace(PLAN, reuse=(ReuseMode.FULL,), trace=trace, warmup=0.0, slo=parse_slo("ttft:1.5s"))
    findings, _ = find(fast_and_slow(), plan)
    (result,) = findings.rates
    assert (result.rate, result.num_requests) == (1.0, 4)
    assert result.ttft_ms == (1000.0, 1000.0, 1000.0, 2000.0)
    assert result.num_good == 3


def test_a_search_measures_long_enough_to_see_a_backlog() -> None:
    plan = LoadPlan(parse_slo("ttft:12s"), duration_s=30.0, min_requests=18, warmup=0.1)
    assert plan.span_s(10.0, {"ttft": 12_000.0}) == 60.0
    assert plan.span_s(0.1, {"ttft": 12_000.0}) == pytest.approx(200.0)
    assert plan.span_s(10.0, {"tpot": 50.0}) == 30.0


def test_rates_and_modes_are_read_or_refused() -> None:
    assert parse_rates("1, 2.5") == (1.0, 2.5)
    assert parse_rates("auto") == ()
    assert parse_reuse("reordered,full,full") == ("reordered", "full")
    for text in ("", "fast", "1,-2", "0"):
        with pytest.raises(InvalidRequest, match="--rate"):
            parse_rates(text)
    with pytest.raises(InvalidRequest, match="'magic'"):
        parse_reuse("full,magic")
