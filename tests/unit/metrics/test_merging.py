"""Texts of several processes become one that Prometheus reads."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from shared.metrics import table
from shared.metrics.node import merged
from shared.metrics.recorder import Metrics


def test_the_series_of_a_metric_stand_together_and_none_is_lost() -> None:
    processes = [Metrics("generator", f"r{i}") for i in range(3)]
    for i, metrics in enumerate(processes):
        metrics.add(table.RPCS, i + 1, method="Generate", code="OK")
        metrics.observe(table.RPC_SECONDS, 0.1, method="Generate")
    processes[2].add(table.GENERATION_TOKENS, 7)
    text = merged(metrics.text() for metrics in processes)
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {s.labels["replica"]: s.value for s in families["kvquilt_rpcs"].samples} == {
        "r0": 1,
        "r1": 2,
        "r2": 3,
    }
    assert families["kvquilt_generation_tokens"].samples[0].value == 7
    assert families["kvquilt_rpc_seconds"].type == "histogram"
    heads = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))


def test_nothing_becomes_nothing() -> None:
    assert merged([]) == ""
    assert merged(["", ""]) == ""
