"""Dashboards and rules name only metrics, and labels, that are in the list."""

from __future__ import annotations

import re

from cluster.dashboards import DASHBOARDS, dashboard
from shared.metrics import table
from shared.metrics.metric import PROCESS_LABELS
from tests.alerts import rules

SERIES = {series: one for one in table.ALL for series in one.series}
RECORDED = {rule["record"] for rule in rules() if "record" in rule}
SELECTED = re.compile(r"\b(kvquilt[\w:]*)(?:\{([^}]*)\})?")
ADDED = {"namespace", "le"}
"""By Kubernetes, and by Prometheus."""


def expressions() -> list[str]:
    shown = [
        target["expr"]
        for name in DASHBOARDS
        for panel in dashboard(name)["panels"]
        for target in panel["targets"]
    ]
    return shown + [rule["expr"] for rule in rules()]


def test_only_metrics_of_the_list_are_shown() -> None:
    named = {found[1] for expression in expressions() for found in SELECTED.finditer(expression)}
    assert named - set(SERIES) - RECORDED == set()
    assert len(named) > 30


def test_only_labels_that_a_metric_has_are_selected_and_summed_by() -> None:
    for expression in expressions():
        found = [match for match in SELECTED.finditer(expression) if match[1] in SERIES]
        known = {label for match in found for label in SERIES[match[1]].labels}
        by = {word for words in re.findall(r"\bby \(([^)]*)\)", expression) for word in words.split(", ")}
        assert by <= known | {*PROCESS_LABELS} | ADDED, expression
        for match in found:
            selected = set(re.findall(r"(\w+)(?:=~|!=|!~|=)", match[2] or ""))
            assert selected <= {*SERIES[match[1]].labels, *PROCESS_LABELS, *ADDED}, expression


def test_every_alert_says_how_bad_it_is_and_what_is_wrong() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("critical", "warning")
            assert rule["annotations"]["summary"]
