"""The configuration's documentation is what the configuration says."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.dashboards import DASHBOARDS, written
from cluster.limits_reference import limits_reference
from cluster.metrics_reference import metrics_reference
from cluster.models.settings import SECTIONS
from cluster.reference import reference

DOCS = Path(__file__).parents[3] / "docs"


def test_the_committed_reference_is_fresh() -> None:
    assert (DOCS / "configuration.md").read_text(encoding="utf-8") == reference(), "run `make docs`"


def test_the_committed_limits_are_fresh() -> None:
    assert (DOCS / "limits.md").read_text(encoding="utf-8") == limits_reference(), "run `make docs`"


def test_the_committed_metrics_are_fresh() -> None:
    assert (DOCS / "metrics.md").read_text(encoding="utf-8") == metrics_reference(), "run `make docs`"


def test_the_committed_dashboards_are_fresh() -> None:
    folder = DOCS.parent / "helm" / "kvquilt" / "files" / "dashboards"
    found = {path.stem: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert found == {name: written(name) for name in DASHBOARDS}, "run `make docs`"


def test_every_section_and_nested_setting_is_in_it() -> None:
    text = reference()
    for section in SECTIONS:
        assert f"\n## {section}\n" in text
    for setting in (
        "grpc_port",
        "gateway.rrf_constant",
        "generator.engine.dtype",
        "SERVICE.deployment.num_replicas",
        "log.level",
    ):
        assert f"| `{setting}` |" in text


@pytest.mark.parametrize("setting", ["gateway.reuse", "generator.reuse", "generator.selector.fallback"])
def test_the_modes_are_listed_on_their_own_page_alone(setting: str) -> None:
    assert f"| `{setting}` | a reuse mode (docs/recompute.md) |" in reference()
