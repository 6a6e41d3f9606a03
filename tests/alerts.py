"""Evaluates the real rules over samples, by ``promtool test rules``: which alerts fire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from cluster.paths import PROJECT_ROOT
from load_tests.servers.prometheus import PrometheusPrograms

RULES = PROJECT_ROOT / "helm" / "kvquilt" / "files" / "rules.yaml"
FIRING = 'count by (alertname) (ALERTS{{alertstate="firing",alertname=~"{among}"}})'


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> set[str]:
    return {rule["alert"] for rule in rules() if "alert" in rule}


def check_firing(
    prometheus: PrometheusPrograms,
    directory: Path,
    series: Mapping[str, str],
    expected: Iterable[str],
    at: str,
    among: str = ".*",
) -> None:
    """``series``: by its name and labels, its values, a minute apart, as Prometheus's tests write them.
    ``among``: a pattern of the alerts that matter.

    Raises:
        AssertionError: others fire at ``at`` than those expected.
    """
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": FIRING.format(among=among),
                        "eval_time": at,
                        "exp_samples": [
                            {"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(expected)
                        ],
                    }
                ],
            }
        ],
    }
    path = directory / "alerts.test.yaml"
    path.write_text(yaml.safe_dump(test), encoding="utf-8")
    prometheus.check("test", "rules", str(path))
