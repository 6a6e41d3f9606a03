"""Looks for where routing by chunks ceases to pay: the same small day, with one thing changed at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from load_tests.routing.choosers import CHUNKS, RENDEZVOUS
from load_tests.routing.findings import Findings, found, gain
from load_tests.routing.plan import DayPlan
from load_tests.routing.simulator import Simulation
from shared.measuring.report import Measurement

CHANGES: Mapping[str, Mapping[str, object]] = {
    "as_it_is": {},
    "half_the_load": {"load": 1.0},
    "three_quarters_more_load": {"load": 3.5},
    "pools_of_a_quarter": {"pool_chunks": 128},
    "pools_of_four_times": {"pool_chunks": 2_048},
    "zipf_0.5": {"zipf": 0.5},
    "zipf_1.2": {"zipf": 1.2},
    "half_novel": {"novel_share": 0.5},
    "no_strays": {"stray_chunks": 0},
    "recompute_a_fifth": {"question_tokens": 1_700},
    "routers_16": {"routers": 16},
    "told_every_10_s": {"report_ms": 9_000.0, "lag_ms": 1_000.0},
    "half_the_reports_lost": {"report_loss": 0.5},
    "never_told": {"report_loss": 1.0},
    "rates_off_by_a_third": {"rates_off": 0.33},
}


def breaks(plan: DayPlan) -> Iterator[Measurement]:
    """Ours over rendezvous hashing with a load bound: the day's p95, and loads per question."""
    for name, changes in CHANGES.items():
        changed = plan.but(**changes)
        ways: dict[str, Findings] = {}
        for way in (RENDEZVOUS, CHUNKS):
            ways[way.name] = found(Simulation(changed, way.make(changed)).run())
        of_p95, of_loads = gain(ways)
        ours, than = ways[CHUNKS.name].day, ways[RENDEZVOUS.name].day
        yield Measurement(f"ttft_p95_{name}", ours.ttft_p95_ms, "ms", than.ttft_p95_ms, of_p95)
        yield Measurement(f"chunk_loads_{name}", ours.num_loads, "loads", than.num_loads, of_loads)
