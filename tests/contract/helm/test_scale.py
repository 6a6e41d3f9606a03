"""The job that gives running clusters their number of pods."""

from __future__ import annotations

import importlib.util
from typing import Any

from tests.helm import CHART, Helm, only, profile


def changes(groups: list[dict[str, Any]], wanted: dict[str, int]) -> list[dict[str, Any]]:
    spec = importlib.util.spec_from_file_location("scale", CHART / "files" / "scale.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.changes(groups, wanted))


def group(name: str, replicas: int) -> dict[str, Any]:
    return {"groupName": name, "replicas": replicas, "minReplicas": replicas, "maxReplicas": replicas}


def test_only_groups_that_differ_are_changed() -> None:
    patch = changes([group("services", 1), group("generators", 1)], {"services": 1, "generators": 2})
    assert patch == [
        {"op": "test", "path": "/spec/workerGroupSpecs/1/groupName", "value": "generators"},
        {"op": "add", "path": "/spec/workerGroupSpecs/1/replicas", "value": 2},
        {"op": "add", "path": "/spec/workerGroupSpecs/1/minReplicas", "value": 2},
        {"op": "add", "path": "/spec/workerGroupSpecs/1/maxReplicas", "value": 2},
    ]


def test_groups_that_nobody_named_stay_as_they_are() -> None:
    assert changes([group("somebody else's", 3), group("generators", 2)], {"generators": 2}) == []


def test_the_job_is_told_the_groups_of_the_rayservice(helm: Helm) -> None:
    objects = helm.render(profile("multi-gpu-ha"), **{"generator.replicas": 7})
    (container,) = only(objects, "Job")["spec"]["template"]["spec"]["containers"]
    service = only(objects, "RayService")
    groups = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    told = [f"{g['groupName']}={g['replicas']}" for g in groups]
    assert container["args"][1:] == [service["metadata"]["name"], *told]
    assert told == ["services=2", "generators=7"]
    compile(container["args"][0], "scale.py", "exec")
