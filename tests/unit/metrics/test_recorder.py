"""What a process tells of its metrics, read back by Prometheus's own parser."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shared.metrics import table
from shared.metrics.config import MetricsConfig
from shared.metrics.recorder import MetricReading, Metrics


def samples(metrics: Metrics, prefix: str = "kvquilt_") -> dict[str, float]:
    """By ``name{label=value,…}``, the labels of the process left out."""
    found = {}
    for family in text_string_to_metric_families(metrics.text()):
        for one in family.samples:
            labels = {
                k: v for k, v in one.labels.items() if k not in ("application", "replica", "model_name")
            }
            said = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
            found[one.name + (f"{{{said}}}" if said else "")] = one.value
    return {name: value for name, value in found.items() if name.startswith(prefix)}


def test_counters_gauges_and_histograms_are_told_with_their_labels() -> None:
    metrics = Metrics()
    metrics.add(table.RPCS, method="Search", code="OK")
    metrics.add(table.RPCS, 2, method="Search", code="OK")
    metrics.add(table.ANSWERS_RUNNING)
    metrics.add(table.ANSWERS_RUNNING, -1)
    metrics.set(table.METRICS_PROCESSES, 3, state="answered")
    metrics.observe(table.RETRIEVE_SECONDS, 0.02)
    told = samples(metrics)
    assert told["kvquilt_rpcs_total{code=OK,method=Search}"] == 3
    assert told["kvquilt_answers_running"] == 0
    assert told["kvquilt_metrics_processes{state=answered}"] == 3
    assert told["kvquilt_retrieve_seconds_bucket{le=0.01}"] == 0
    assert told["kvquilt_retrieve_seconds_bucket{le=0.025}"] == 1
    assert told["kvquilt_retrieve_seconds_sum"] == 0.02
    assert not any("_created" in name for name in told)


def test_every_series_says_whose_it_is() -> None:
    metrics = Metrics("gateway", "r1", MetricsConfig(model_name="demo"))
    metrics.add(table.ANSWERS_RUNNING)
    families = list(text_string_to_metric_families(metrics.text()))
    labels = [one.labels for family in families for one in family.samples]
    assert len(labels) > 3  # the process's own, too
    for said in labels:
        assert {name: said[name] for name in ("application", "replica", "model_name")} == {
            "application": "gateway",
            "replica": "r1",
            "model_name": "demo",
        }


def test_what_is_known_anyway_is_asked_for_when_somebody_looks() -> None:
    values = iter((1.0, 2.0))
    metrics = Metrics()
    metrics.ask(lambda: [MetricReading(table.CHUNK_HITS, next(values), {"tier": "disk"})])
    assert samples(metrics)["kvquilt_chunk_hits_total{tier=disk}"] == 1
    assert samples(metrics)["kvquilt_chunk_hits_total{tier=disk}"] == 2


def test_a_source_that_fails_leaves_the_rest() -> None:
    def broken() -> list[MetricReading]:
        raise OSError("gone")

    metrics = Metrics()
    metrics.ask(broken)
    metrics.ask(lambda: [MetricReading(table.REQUESTS_RUNNING, 4)])
    assert samples(metrics) == {"kvquilt_num_requests_running": 4}


def test_tenants_are_not_told_apart_unless_that_is_set() -> None:
    metrics = Metrics()
    metrics.add(table.ANSWERS, mode="full", code="OK", tenant="acme")
    assert samples(metrics) == {"kvquilt_answers_total{code=OK,mode=full}": 1}


def test_only_so_many_tenants_are_told_apart() -> None:
    metrics = Metrics(config=MetricsConfig(tenants=2))
    for tenant in ("a", "b", "c", "d", "a"):
        metrics.add(table.INGESTED_CHUNKS, tenant=tenant)
    assert samples(metrics) == {
        "kvquilt_ingested_chunks_total{tenant=a}": 2,
        "kvquilt_ingested_chunks_total{tenant=b}": 1,
        "kvquilt_ingested_chunks_total{tenant=other}": 2,
    }


def test_vllms_metrics_are_told_by_its_names_as_well_where_that_is_set() -> None:
    metrics = Metrics(config=MetricsConfig(vllm_names=True))
    metrics.observe(table.TIME_TO_FIRST_TOKEN, 0.3)
    metrics.add(table.RPCS, method="Search", code="OK")
    metrics.ask(lambda: [MetricReading(table.REQUESTS_RUNNING, 4)])
    told = samples(metrics, "vllm:")
    assert told["vllm:num_requests_running"] == samples(metrics)["kvquilt_num_requests_running"] == 4
    assert told["vllm:time_to_first_token_seconds_bucket{le=0.5}"] == 1
    assert "vllm:rpcs_total{code=OK,method=Search}" not in told


def test_what_cannot_be_recorded_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    metrics.add(table.GENERATION_TOKENS, -1)
    metrics.add(table.RPCS, method="Search")
    metrics.observe(table.RETRIEVE_SECONDS, 0.1, mode="full")
    assert caplog.text.count("was not recorded") == 3
