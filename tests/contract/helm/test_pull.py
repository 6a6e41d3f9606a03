"""The job that brings a model to its volume."""

from __future__ import annotations

from typing import Any

import kubernetes_validate

from tests.helm import KUBERNETES, Helm, only, profile

PULL = {"model": "Qwen/Qwen3-0.6B@v1.0", "existingSecret": "hub"}
MODEL = {"existingClaim": "models", "subPath": "qwen3", "path": "/models/served", "pull": PULL}


def pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = only(objects, "Job", "-pull")["spec"]["template"]["spec"]
    return found


def test_without_a_model_to_bring_there_is_no_job(helm: Helm) -> None:
    names = [o["metadata"]["name"] for o in helm.render(profile("single-gpu")) if o["kind"] == "Job"]
    assert not [name for name in names if name.endswith("-pull")]


def test_it_brings_the_model_to_where_pods_look_for_it_before_they_start(helm: Helm) -> None:
    objects = helm.render(profile("single-gpu"), model=MODEL)
    job = only(objects, "Job", "-pull")
    kubernetes_validate.validate(job, KUBERNETES, strict=True)
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    (container,) = pod(objects)["containers"]
    assert container["command"] + container["args"] == [
        *("kvquilt", "models", "pull", "Qwen/Qwen3-0.6B@v1.0"),
        *("--to", "/models/qwen3"),
    ]
    assert {"name": "models", "mountPath": "/models"} in container["volumeMounts"]
    cluster = only(objects, "RayService")["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (ray,) = group["template"]["spec"]["containers"]
        (mount,) = [m for m in ray["volumeMounts"] if m["name"] == "model"]
        assert (mount["mountPath"], mount["subPath"]) == ("/models/served", "qwen3")
        assert mount["readOnly"]


def test_the_token_comes_from_a_secret_and_the_pod_keeps_to_the_restricted_standard(helm: Helm) -> None:
    extra = [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]
    spec = pod(helm.render(profile("single-gpu"), model=MODEL, extraEnv=extra))
    (container,) = spec["containers"]
    environment = {variable["name"]: variable for variable in container["env"]}
    assert environment["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "HF_TOKEN"}}
    assert environment["HF_HUB_OFFLINE"]["value"] == "0"
    assert environment["HTTPS_PROXY"]["value"] == "http://proxy:3128"
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
