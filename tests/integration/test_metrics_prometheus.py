"""Dashboards, rules and what processes tell, in a real Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.dashboards import DASHBOARDS, dashboard
from load_tests.servers.prometheus import PrometheusPrograms, PrometheusServer
from tests.alerts import RULES, alerts, check_firing, rules
from tests.e2e.stack import wait_for
from tests.prometheus_server import Everything, serving

GATEWAY = {'kvquilt_service_ready{service="retrieval"}': "1x500"}
"""A gateway that is there."""
CASES: dict[str, tuple[dict[str, str], str, set[str]]] = {
    # series, when, and what fires beside the alert
    "KvquiltAnswersFailFast": (
        {
            'kvquilt_answers_total{code="OK"}': "0+90x80",
            'kvquilt_answers_total{code="UNAVAILABLE"}': "0+10x80",
        },
        "70m",
        {"KvquiltAnswersFail"},
    ),
    "KvquiltAnswersFail": (
        {
            'kvquilt_answers_total{code="OK"}': "0+96x400",
            'kvquilt_answers_total{code="INTERNAL"}': "0+4x400",
        },
        "390m",
        set(),
    ),
    "KvquiltFirstTokensLateFast": (
        {
            'kvquilt_answer_time_to_first_token_seconds_bucket{le="2.5"}': "0+10x80",
            "kvquilt_answer_time_to_first_token_seconds_count": "0+100x80",
        },
        "70m",
        {"KvquiltFirstTokensLate"},
    ),
    "KvquiltFirstTokensLate": (
        {
            'kvquilt_answer_time_to_first_token_seconds_bucket{le="2.5"}': "0+60x400",
            "kvquilt_answer_time_to_first_token_seconds_count": "0+100x400",
        },
        "390m",
        set(),
    ),
    "KvquiltServiceNotReady": ({'kvquilt_service_ready{service="generator"}': "1x5 0x20"}, "15m", set()),
    "KvquiltGatewayMissing": ({}, "10m", set()),
    "KvquiltRequestsRefused": (
        {
            'kvquilt_rpcs_total{application="selector",code="OK"}': "0+80x60",
            'kvquilt_rpcs_total{application="selector",code="OVERLOADED"}': "0+20x60",
        },
        "30m",
        set(),
    ),
    "KvquiltKvMemoryFull": ({'kvquilt_kv_cache_usage_perc{replica="r1"}': "0.99x60"}, "30m", set()),
    "KvquiltVerdictSuspended": ({'kvquilt_verdict{state="suspended"}': "0x3 1x20"}, "10m", set()),
    "KvquiltVerdictExpired": ({'kvquilt_verdict{state="expired"}': "1x60"}, "30m", set()),
    "KvquiltMetricsSilent": ({'kvquilt_metrics_processes{state="silent"}': "1x60"}, "30m", set()),
    "KvquiltStoreUnavailable": ({'kvquilt_service_ready{service="kv_store"}': "1x5 0x20"}, "10m", set()),
    "KvquiltDiskNearlyFull": (
        {"kvquilt_store_room_bytes": "5000000000x60", "kvquilt_store_disk_bytes": "100000000000x60"},
        "30m",
        set(),
    ),
    "KvquiltDiskFull": (
        {"kvquilt_store_room_bytes": "1000000x60", "kvquilt_store_disk_bytes": "100000000x60"},
        "5m",
        set(),
    ),
    "KvquiltManifestsDamaged": ({"kvquilt_store_damaged_manifests": "0x3 1x20"}, "10m", set()),
    "KvquiltChunksDamaged": (
        {'kvquilt_chunk_events_total{event="damaged_objects",replica="agent-1"}': "0x3 2x30"},
        "10m",
        set(),
    ),
    "KvquiltIngestionFails": (
        {
            'kvquilt_ingested_documents_total{outcome="stored"}': "0+6x90",
            'kvquilt_ingested_documents_total{outcome="failed"}': "0+4x90",
        },
        "60m",
        set(),
    ),
}
HEALTHY = {
    'kvquilt_answers_total{code="OK"}': "0+100x400",
    'kvquilt_answers_total{code="NOT_FOUND"}': "0+50x400",  # the callers' own fault
    'kvquilt_answers_total{code="CANCELLED"}': "0+50x400",
    'kvquilt_answers_total{code="UNAVAILABLE"}': "0 1x399",
    'kvquilt_answer_time_to_first_token_seconds_bucket{le="2.5"}': "0+99x400",
    "kvquilt_answer_time_to_first_token_seconds_count": "0+100x400",
    'kvquilt_service_ready{service="kv_store"}': "1x400",
    "kvquilt_store_documents_sure": "1x400",
    'kvquilt_verdict{state="in_force"}': "1x400",
    'kvquilt_verdict{state="suspended"}': "0x400",
    "kvquilt_store_room_bytes": "50000000000x400",
    "kvquilt_store_disk_bytes": "100000000000x400",
    'kvquilt_kv_cache_usage_perc{replica="r1"}': "0.6x400",
}


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, prometheus: PrometheusPrograms
) -> Iterator[PrometheusServer]:
    """It has read every metric several times."""
    with serving(Everything()) as target:
        running = PrometheusServer(tmp_path_factory.mktemp("prometheus"), target, RULES, prometheus)
        try:
            grown = "rate(kvquilt_answers_total[1m]) > 0 and on () kvquilt:answers_failed:ratio_rate6h"
            wait_for(lambda: running.query(grown) or None, "two looks at the metrics")
            yield running
        finally:
            running.close()


def expressions() -> list[str]:
    """As Grafana asks them, with everything chosen."""
    found = []
    for name in DASHBOARDS:
        for panel in dashboard(name)["panels"]:
            found += [target["expr"] for target in panel["targets"]]
    chosen = {"$namespace": ".*", "$model": ".*", "$__rate_interval": "1m"}
    for variable, value in chosen.items():
        found = [expression.replace(variable, value) for expression in found]
    return found


def test_every_line_of_the_dashboards_shows_something(server: PrometheusServer) -> None:
    assert [expression for expression in expressions() if not server.query(expression)] == []


def test_every_recorded_rule_shows_something_and_every_alert_can_be_asked(server: PrometheusServer) -> None:
    recorded = [rule["expr"] for rule in rules() if "record" in rule]
    assert [expression for expression in recorded if not server.query(expression)] == []
    for rule in rules():
        server.query(rule["expr"])


def test_the_dashboards_variables_find_models(server: PrometheusServer) -> None:
    (found,) = server.query('count by (model_name) (process_start_time_seconds{model_name!=""})')
    assert found["metric"] == {"model_name": "demo"}


def test_prometheus_finds_nothing_wrong_with_names_and_rules(prometheus: PrometheusPrograms) -> None:
    prometheus.check("check", "metrics", stdin=Everything().text())
    assert "SUCCESS" in prometheus.check("check", "rules", str(RULES))


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == alerts()


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_when_it_should(alert: str, prometheus: PrometheusPrograms, tmp_path: Path) -> None:
    series, at, others = CASES[alert]
    there = {} if alert == "KvquiltGatewayMissing" else GATEWAY
    check_firing(prometheus, tmp_path, there | series, {alert, *others}, at)


def test_none_fires_while_all_is_well(prometheus: PrometheusPrograms, tmp_path: Path) -> None:
    check_firing(prometheus, tmp_path, GATEWAY | HEALTHY, (), "390m")


def test_a_dashboard_is_what_grafana_imports() -> None:
    for name in DASHBOARDS:
        made = json.loads(json.dumps(dashboard(name)))
        assert made["uid"] == f"kvquilt-{name}"
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in made["panels"]]
        assert len(set(places)) == len(places)
