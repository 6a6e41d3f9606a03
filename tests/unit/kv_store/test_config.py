from __future__ import annotations

import pytest

from services.kv_store.config import KvStoreConfig
from shared.config import load, to_dict
from shared.errors import ConfigError


def test_a_configuration_survives_the_way_to_another_process() -> None:
    config = load(
        KvStoreConfig,
        {
            "directory": "/data/kv",
            "deployment": {"num_replicas": 2},
            "memory": {"capacity_bytes": 5},
            "quotas": {"tenants": {"a": 1}},
        },
    )
    assert load(KvStoreConfig, to_dict(config)) == config


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({}, "directory"),
        ({"directory": "relative/path"}, "directory"),
        ({"directory": "/d", "reconcile_s": 0}, "reconcile_s"),
        ({"directory": "/d", "stale_staging_s": -1}, "stale_staging_s"),
        ({"directory": "/d", "diectory": "/e"}, "diectory"),
        ({"directory": "/d", "disk_capacity_bytes": -1}, "disk_capacity_bytes"),
        ({"directory": "/d", "lease_s": -1}, "lease_s"),
        *(({"directory": "/d", "resident_floor": f}, "resident_floor") for f in (-0.1, 1.1, float("nan"))),
        ({"directory": "/d", "memory": {"directory": "shm"}}, "memory.directory"),
        ({"directory": "/d", "memory": {"capacity_bytes": -1}}, "memory.capacity_bytes"),
        ({"directory": "/d", "fetch": {"concurrency": 0}}, "fetch.concurrency"),
        ({"directory": "/d", "fetch": {"part_bytes": 0}}, "fetch.part_bytes"),
        ({"directory": "/d", "fetch": {"timeout_s": 0}}, "fetch.timeout_s"),
        ({"directory": "/d", "quotas": {"default_bytes": -1}}, "quotas.default_bytes"),
        ({"directory": "/d", "quotas": {"tenants": {"acme": -1}}}, "quotas.tenants.acme"),
        ({"directory": "/d", "objects": {"endpoint": "https://x"}}, "objects.endpoint"),
    ],
)
def test_a_bad_setting_is_named(values: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load(KvStoreConfig, values)
