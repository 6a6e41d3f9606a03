from __future__ import annotations

import pytest

from services.kv_store.config import KvStoreConfig
from shared.config import load, to_dict
from shared.errors import ConfigError


def test_a_configuration_survives_the_way_to_another_process() -> None:
    config = load(KvStoreConfig, {"directory": "/data/kv", "deployment": {"num_replicas": 2}})
    assert load(KvStoreConfig, to_dict(config)) == config


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({}, "directory"),
        ({"directory": "relative/path"}, "directory"),
        ({"directory": "/d", "reconcile_s": 0}, "reconcile_s"),
        ({"directory": "/d", "stale_staging_s": -1}, "stale_staging_s"),
        ({"directory": "/d", "diectory": "/e"}, "diectory"),
    ],
)
def test_a_bad_setting_is_named(values: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load(KvStoreConfig, values)
