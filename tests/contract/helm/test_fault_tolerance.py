"""A Redis that keeps the head's book-keeping: who is told of it, who reaches it, and what stays to clear it
up. Or a volume of the head's own, with Ray's RocksDB."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from tests.contract.helm.test_profiles import (
    kept,
    pod_specs,
    ray_templates,
    rayservice_schema,
    selects,
)
from tests.contract.helm.test_secrets import secrets_of
from tests.helm import Helm, only, profile

REDIS = "head.faultTolerance.redis"
ROCKSDB = "head.faultTolerance.rocksdb"
ON_A_VOLUME: dict[str, Any] = {f"{ROCKSDB}.enabled": True}
ADDRESS: dict[str, Any] = {f"{REDIS}.address": "valkey.stores:6380"}
OUT = {"protocol": "TCP", "port": 6380}
KEYED = ADDRESS | {f"{REDIS}.username": "ray", f"{REDIS}.existingSecret": "redis-password"}


def options(objects: list[dict[str, Any]]) -> dict[str, Any] | None:
    cluster: dict[str, Any] = only(objects, "RayService")["spec"]["rayClusterConfig"]
    return cluster.get("gcsFaultToleranceOptions")


@pytest.mark.parametrize("name", ["dev-cpu", "multi-gpu-ha"])
def test_kuberay_is_told_of_the_redis_and_where_its_password_is(helm: Helm, name: str) -> None:
    objects = helm.render(profile(name), **KEYED)
    jsonschema.Draft202012Validator(rayservice_schema()).validate(only(objects, "RayService"))
    assert options(objects) == {
        "redisAddress": "valkey.stores:6380",
        "redisUsername": {"value": "ray"},
        "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "redis-password", "key": "password"}}},
    }


@pytest.mark.parametrize("address", ["valkey:6379", "rediss://valkey.example:6380", "[fd00::1]:6379"])
def test_a_redis_that_asks_for_no_password_has_an_address_only(helm: Helm, address: str) -> None:
    assert options(helm.render(profile("dev-cpu"), **{f"{REDIS}.address": address})) == {
        "redisAddress": address
    }


def test_two_clusters_side_by_side_never_share_a_name_in_it(helm: Helm) -> None:
    """KubeRay takes the cluster's own, unless it is told one: then a takeover would find the first's."""
    told = options(helm.render(profile("multi-gpu-ha"), **KEYED))
    assert told is not None
    assert "externalStorageNamespace" not in told


def test_the_head_alone_reaches_it(helm: Helm) -> None:
    objects = helm.render(profile("dev-cpu"), **ADDRESS)
    reaching = {
        component
        for component, template in ray_templates(objects).items()
        for policy in (o["spec"] for o in objects if o["kind"] == "NetworkPolicy")
        if selects(policy["podSelector"], template["metadata"]["labels"])
        and any(
            {"protocol": "TCP", "port": 6380} in rule.get("ports", []) for rule in policy.get("egress", [])
        )
    }
    assert reaching == {"head"}


@pytest.mark.parametrize("given", [{}, {"rayTls.enabled": True}], ids=str)
def test_what_the_job_names_that_clears_it_up_outlives_the_release(helm: Helm, given: dict[str, Any]) -> None:
    """KubeRay starts it from the head's template once the release is gone."""
    objects = helm.render(profile("dev-cpu"), **ADDRESS, **given)
    head = pod_specs(objects)["head"]
    named = {name for name, _ in secrets_of(head)} | {head["serviceAccountName"]}
    made = {o["metadata"]["name"]: o for o in objects if o["kind"] in ("Secret", "ServiceAccount")}
    assert named <= made.keys()
    assert {name for name in named if not kept(made[name])} == set()


def test_without_it_only_what_seals_the_stored_outlives_the_release(helm: Helm) -> None:
    objects = helm.render(profile("dev-cpu"))
    assert options(objects) is None
    assert not [o for o in objects if o["metadata"]["name"].endswith("-redis")]
    made = [o for o in objects if o["kind"] in ("Secret", "ServiceAccount")]
    assert [o["metadata"]["name"] for o in made if kept(o)] == ["quilt-kvquilt-installation"]


def test_annotations_of_ones_own_stay_beside_it(helm: Helm) -> None:
    account = only(
        helm.render(profile("dev-cpu"), **ADDRESS, **{"serviceAccount.annotations": {"owner": "search"}}),
        "ServiceAccount",
        "-kvquilt",
    )
    assert account["metadata"]["annotations"] == {"owner": "search", "helm.sh/resource-policy": "keep"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({f"{REDIS}.address": "valkey"}, f'{REDIS}.address: must be host:port, got "valkey"'),
        ({f"{REDIS}.address": "http://valkey:6379"}, f"{REDIS}.address: must be host:port"),
        ({f"{REDIS}.address": "a:6379,b:6379"}, f"{REDIS}.address: must be host:port"),
        ({f"{REDIS}.address": "redis://:secret@a:6379"}, f"{REDIS}.address: holds a user or a password"),
        (
            {f"{REDIS}.existingSecret": "keys"},
            f"{REDIS}.existingSecret: has no effect, since {REDIS}.address",
        ),
        ({f"{REDIS}.username": "ray"}, f"{REDIS}.username: has no effect, since {REDIS}.address is empty"),
        (ADDRESS | {f"{REDIS}.username": "ray"}, f'{REDIS}.username: "ray" has no password; set {REDIS}'),
        (ADDRESS | {f"{REDIS}.password": "x"}, "additional properties 'password' not allowed"),
        (
            {"extraEnv": [{"name": "RAY_REDIS_ADDRESS", "value": "valkey:6379"}]},
            f"extraEnv: RAY_REDIS_ADDRESS is KubeRay's to set; set {REDIS}",
        ),
        (ON_A_VOLUME | ADDRESS, f"{ROCKSDB}.enabled: the Redis of {REDIS} keeps the same"),
        ({f"{ROCKSDB}.existingClaim": "mine"}, f"{ROCKSDB}.existingClaim: has no effect"),
        (ON_A_VOLUME | {f"{ROCKSDB}.accessMode": "ReadOnlyMany"}, "accessMode"),
        (
            {"extraEnv": [{"name": "RAY_gcs_storage", "value": "rocksdb"}]},
            f"extraEnv: RAY_gcs_storage is set by the chart; set {ROCKSDB}",
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_what_cannot_be_is_refused_and_named(values: dict[str, Any], message: str, helm: Helm) -> None:
    assert message in helm.refusal(profile("dev-cpu"), **values)


@pytest.mark.parametrize("name", ["dev-cpu", "multi-gpu-ha"])
def test_with_rocksdb_the_head_has_a_volume_and_the_others_wait_for_it(helm: Helm, name: str) -> None:
    objects = helm.render(profile(name), **ON_A_VOLUME)
    jsonschema.Draft202012Validator(rayservice_schema()).validate(only(objects, "RayService"))
    assert options(objects) is None
    for component, template in ray_templates(objects).items():
        pod = template["spec"]
        (ray,) = (container for container in pod["containers"] if container["name"] == "ray")
        variables = {variable["name"]: variable.get("value") for variable in ray["env"]}
        mounts = [mount for mount in ray["volumeMounts"] if mount["name"] == "gcs"]
        claims = [v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if v["name"] == "gcs"]
        if component == "head":
            assert variables["RAY_gcs_storage"] == "rocksdb"
            assert claims == ["quilt-kvquilt-head"]
            # a directory for each of the two clusters of a takeover
            assert mounts == [
                {
                    "name": "gcs",
                    "mountPath": variables["RAY_gcs_storage_path"],
                    "subPathExpr": "$(RAY_CLUSTER_NAME)",
                }
            ]
        else:
            assert variables["RAY_gcs_rpc_server_reconnect_timeout_s"] == "600"
            assert (mounts, claims) == ([], [])
            assert "RAY_gcs_storage" not in variables


def test_its_claim_goes_with_the_release_and_may_be_another_one(helm: Helm) -> None:
    wide = {f"{ROCKSDB}.size": "3Gi", f"{ROCKSDB}.accessMode": "ReadWriteMany"}
    claim = only(
        helm.render(profile("dev-cpu"), **ON_A_VOLUME, **wide), "PersistentVolumeClaim", "-kvquilt-head"
    )
    assert not kept(claim)
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "3Gi"

    objects = helm.render(profile("dev-cpu"), **ON_A_VOLUME, **{f"{ROCKSDB}.existingClaim": "mine"})
    assert {"name": "gcs", "persistentVolumeClaim": {"claimName": "mine"}} in pod_specs(objects)["head"][
        "volumes"
    ]
    assert not [o for o in objects if o["metadata"]["name"] == "quilt-kvquilt-head"]
