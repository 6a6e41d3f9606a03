"""What Ray Serve builds applications from."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from ray.serve._private.replica import _load_deployment_def_from_import_path

from cluster import applications
from cluster.paths import DEMO_MODEL, PROJECT_ROOT
from shared.errors import ConfigError

ARGS = {"model": str(DEMO_MODEL)}


def test_every_application_has_a_builder() -> None:
    assert set(applications.REPLICAS) == {
        path.parent.name for path in (PROJECT_ROOT / "services").glob("*/app.py")
    }
    assert all(callable(getattr(applications, name)) for name in applications.REPLICAS)


@pytest.mark.parametrize("name", applications.REPLICAS)
def test_an_application_is_built_from_its_section(name: str) -> None:
    built = getattr(applications, name)(ARGS | {name: {"deployment": {"max_ongoing_requests": 7}}})
    deployment = built._bound_deployment
    assert deployment.name == name
    assert deployment.max_ongoing_requests == 7
    served: Any = _load_deployment_def_from_import_path(deployment.func_or_class)
    assert served.application == name
    assert inspect.iscoroutinefunction(served.__call__)  # or Serve hides it from gRPC
    (section,) = deployment.init_args
    assert section.deployment.max_ongoing_requests == 7


def test_a_wrong_setting_stops_the_build_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"generator\.max_chunks"):
        applications.generator(ARGS | {"generator": {"max_chunks": 0}})
