"""The chart's schema knows the settings that the configuration has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cluster.config import load_quilt
from cluster.values_schema import quilt_schema, with_quilt
from shared.config import to_dict

SCHEMA = Path(__file__).parents[3] / "helm" / "kvquilt" / "values.schema.json"


def test_the_committed_schema_is_fresh() -> None:
    committed = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert committed == with_quilt(committed), "run `make docs`"


def test_a_whole_configuration_is_accepted(tmp_path: Path) -> None:
    jsonschema.validate(to_dict(load_quilt({"data_dir": str(tmp_path)}, {})), quilt_schema())


@pytest.mark.parametrize(
    "wrong",
    [
        {"generator": {"reuze": "full"}},
        {"generator": {"reuse": "all"}},
        {"generator": {"selector": {"fallback": "cacheclip"}}},
        {"generator": {"selector": {"fallback": "tokens"}}},
        {"generator": {"selector": {"fallback": "auto"}}},
        {"generator": {"engine": {"max_waiting": "many"}}},
        {"kv_store": {"quotas": {"tenants": {"a": "1 GB"}}}},
        {"gateway": {"deployment": {"num_replicas": -1}}},
    ],
)
def test_a_wrong_setting_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, quilt_schema())
