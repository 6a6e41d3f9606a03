"""Shows what real replicas did, a row for each way of choosing."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from load_tests.routing.real_findings import WayRun, findings
from load_tests.routing.real_plan import RealPlan


def real_table(runs: Mapping[str, WayRun], plan: RealPlan) -> Table:
    """With 95 % intervals."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    names = ("by", "answers", "failed", "loads each", "hit ratio", "p50 ms", "p95 ms", "stale chunks")
    for i, name in enumerate(names):
        table.add_column(name, justify="right" if i else "left")
    for way, run in runs.items():
        found = findings(run, plan)
        counts = str(len(run.answers)), str(sum(run.failed.values()))
        numbers = found.chunk_loads, found.hit_ratio, found.ttft_p50_ms, found.ttft_p95_ms
        table.add_row(way, *counts, *map(str, numbers), f"{run.told.get('stale', 0):.0f}")
    return table
