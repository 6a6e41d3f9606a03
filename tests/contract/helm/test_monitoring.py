"""What the chart brings for Prometheus and Grafana: nothing unless it is asked for."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest
import yaml

from cluster.dashboards import DASHBOARDS
from shared.metrics.table import ANSWER_FIRST_TOKEN
from tests.alerts import RULES
from tests.helm import CHART, KUBERNETES, Helm, only, profile, serve_config_of

DEV = profile("dev-cpu")
ON: dict[str, Any] = {
    "monitoring.enabled": True,
    "monitoring.podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "monitoring.rules": {"enabled": True},
    "monitoring.dashboards": {"enabled": True},
}


def kinds(objects: list[dict[str, Any]]) -> set[str]:
    return {f"{one['kind']} {one['metadata']['name']}" for one in objects}


def templates(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    cluster = only(objects, "RayService")["spec"]["rayClusterConfig"]
    return [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def pods(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [template["spec"]["containers"][0] for template in templates(objects)]


def labels_of_pods(objects: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [template["metadata"]["labels"] for template in templates(objects)]


def test_without_it_nothing_of_it_is_there(helm: Helm) -> None:
    objects = helm.render(DEV)
    assert not {one["kind"] for one in objects} & {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
    assert not [name for name in kinds(objects) if "dashboard" in name or name.endswith("-metrics")]
    assert "metrics" not in json.dumps([pod["ports"] for pod in pods(objects)])
    assert all("metrics" not in app["args"] for app in serve_config_of(objects)["applications"])
    assert "9464" not in json.dumps([one for one in objects if one["kind"] == "NetworkPolicy"])


def test_every_pod_shows_its_metrics_to_the_scrapers_alone(helm: Helm) -> None:
    objects = helm.render(DEV, **ON, **{"monitoring.port": 9999})
    assert all({"name": "kvquilt-metrics", "containerPort": 9999} in pod["ports"] for pod in pods(objects))
    for app in serve_config_of(objects)["applications"]:
        assert app["args"]["metrics"] == {"port": 9999, "host": "0.0.0.0"}
    ingress = only(objects, "NetworkPolicy", "-ray")["spec"]["ingress"]
    (opened,) = [rule for rule in ingress if {"protocol": "TCP", "port": 9999} in rule.get("ports", [])]
    (scraper,) = opened["from"]
    assert scraper["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}


def test_the_pod_monitor_finds_all_of_rays_pods(helm: Helm) -> None:
    objects = helm.render(DEV, **ON)
    monitor = only(objects, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("kvquilt-metrics", "/metrics")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    for labels in labels_of_pods(objects):
        assert wanted.items() <= labels.items()


def test_the_service_monitor_finds_all_of_rays_pods_by_a_service_of_its_own(helm: Helm) -> None:
    on = {"monitoring.enabled": True, "monitoring.port": 9999}
    asked = {"monitoring.serviceMonitor": {"enabled": True, "interval": "10s", "labels": {"release": "p"}}}
    objects = helm.render(DEV, **on, **asked)
    monitor = only(objects, "ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "p"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["path"], endpoint["interval"]) == ("/metrics", "10s")

    wanted = monitor["spec"]["selector"]["matchLabels"]
    serve = only(objects, "RayService")["spec"]["serveService"]
    services = [one for one in objects if one["kind"] == "Service"] + [serve]
    (service,) = [one for one in services if wanted.items() <= one["metadata"]["labels"].items()]
    kubernetes_validate.validate(service, KUBERNETES, strict=True)
    assert service["metadata"]["name"] == "quilt-kvquilt-metrics"
    assert service["spec"]["clusterIP"] == "None"  # else it would answer for one pod at a time
    assert service["spec"]["publishNotReadyAddresses"]  # pods without a replica that serves are never ready
    (port,) = service["spec"]["ports"]
    assert port == {"name": endpoint["port"], "port": 9999, "targetPort": "kvquilt-metrics"}
    assert all({"name": "kvquilt-metrics", "containerPort": 9999} in pod["ports"] for pod in pods(objects))
    for labels in labels_of_pods(objects):
        assert service["spec"]["selector"].items() <= labels.items()
    for pod in (one for one in objects if one["kind"] in ("Pod", "Deployment", "StatefulSet")):
        assert not service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


def test_the_rules_are_those_of_the_file_with_the_operators_objectives(helm: Helm) -> None:
    written = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    assert only(helm.render(DEV, **ON), "PrometheusRule")["spec"] == written
    objectives = {"enabled": True, "answered": 0.99, "firstTokens": 0.9, "firstTokenSeconds": "1.0"}
    changed = json.dumps(only(helm.render(DEV, **ON | {"monitoring.rules": objectives}), "PrometheusRule"))
    for old, new in (
        ("(1 - 0.995)", "(1 - 0.99)"),
        ("(1 - 0.95)", "(1 - 0.9)"),
        ('le=\\"2.5\\"', 'le=\\"1.0\\"'),
        ("more than 2.5 s", "more than 1.0 s"),
    ):
        assert json.dumps(written).count(old) == changed.count(new) > 0
        assert old not in changed


def test_the_objective_can_be_any_bucket_that_is_there() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    rules = schema["properties"]["monitoring"]["properties"]["rules"]["properties"]
    assert set(map(float, rules["firstTokenSeconds"]["enum"])) <= set(ANSWER_FIRST_TOKEN.buckets)
    assert all(repr(float(one)) == one for one in rules["firstTokenSeconds"]["enum"])


def test_the_dashboards_are_whole_and_where_grafanas_sidecar_looks(helm: Helm) -> None:
    objects = helm.render(DEV, **ON)
    for name in DASHBOARDS:
        found = only(objects, "ConfigMap", f"-dashboard-{name}")
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        (text,) = found["data"].values()
        assert json.loads(text)["uid"] == f"kvquilt-{name}"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"monitoring.podMonitor": {"enabled": True}}, "monitoring.podMonitor.enabled: pods show no metrics"),
        (
            {"monitoring.serviceMonitor": {"enabled": True}},
            "monitoring.serviceMonitor.enabled: pods show no metrics",
        ),
        (
            ON | {"monitoring.serviceMonitor": {"enabled": True}},
            "monitoring.serviceMonitor.enabled: finds the same pods as monitoring.podMonitor",
        ),
        ({"monitoring.rules": {"enabled": True}}, "monitoring.rules.enabled: pods show no metrics"),
        ({"monitoring.enabled": True, "monitoring.port": 8000}, "monitoring.port: 8000 is taken"),
        ({"config.metrics": {"port": 9464}}, "config.metrics.port: the chart decides it; set monitoring"),
        ({"monitoring.rules": {"firstTokenSeconds": "3"}}, "at '/monitoring/rules/firstTokenSeconds'"),
        ({"monitoring.rules": {"answered": 1}}, "at '/monitoring/rules/answered'"),
    ],
)
def test_what_cannot_work_is_refused(helm: Helm, values: dict[str, Any], message: str) -> None:
    assert message in helm.refusal(DEV, **values)
