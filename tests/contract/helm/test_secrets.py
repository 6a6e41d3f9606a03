"""Keys and secrets: who makes them, and that a pod has none that it does not need."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.principals.keys import KeyKind, id_of, utc_now
from shared.principals.keys_file import read_keys
from shared.principals.principal import Role
from shared.principals.secret import signer_of
from tests.contract.helm.test_profiles import pod_specs, ray_templates
from tests.helm import PROFILES, Helm, only, profile, serve_config_of

MILVUS, OBJECTS, KEYS, INSTALLATION = "kvquilt-milvus", "kvquilt-objects", "callers", "shared-secret"
OWN: dict[str, Any] = {"auth.existingSecret": KEYS, "auth.installationSecret": INSTALLATION}


def secrets_of(spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Name of every secret that a pod can read, and how: by variable or by volume."""
    for volume in spec.get("volumes", []):
        if "secret" in volume:
            yield volume["secret"]["secretName"], "volume"
        for source in volume.get("projected", {}).get("sources", []):
            yield source["secret"]["name"], "volume"
    for container in spec["containers"]:
        for variable in container.get("env", []):
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                yield reference["name"], variable["name"]
        for source in container.get("envFrom", []):
            yield source["secretRef"]["name"], "environment"


def test_every_pod_has_the_secrets_that_it_needs_and_no_others(helm: Helm) -> None:
    pods = pod_specs(helm.render(profile("multi-gpu-ha"), **OWN))
    agents = {(OBJECTS, "volume"), (INSTALLATION, "volume")}
    token = (MILVUS, "KVQUILT_RETRIEVAL__MILVUS_TOKEN")
    assert {name: set(secrets_of(spec)) for name, spec in pods.items()} == {
        "head": agents | {token},
        "services": agents | {token, (KEYS, "volume")},
        "generator": agents | {(KEYS, "volume")},
        "Pod": {(KEYS, "KVQUILT_API_KEY")},
        "Job": set(),
    }


def test_pods_that_serve_read_hashes_of_keys_and_no_key(helm: Helm) -> None:
    for template in ray_templates(helm.render(profile("dev-cpu"))).values():
        for volume in template["spec"]["volumes"]:
            if volume["name"] == "keys":
                assert volume["secret"]["items"] == [{"key": "keys.json", "path": "keys.json"}]
                assert volume["secret"]["defaultMode"] == 0o440


@pytest.mark.parametrize("name", PROFILES)
def test_no_secret_stands_in_what_pods_are_configured_by(helm: Helm, name: str) -> None:
    objects = helm.render(profile(name))
    told = str([o for o in objects if o["kind"] != "Secret"])
    for secret in (o for o in objects if o["kind"] == "Secret"):
        for value in secret["data"].values():
            assert base64.b64decode(value).decode().strip() not in told
    assert "milvus_token" not in told


def test_without_a_secret_of_keys_there_is_one_for_an_administrator(helm: Helm, tmp_path: Path) -> None:
    first, second = (only(helm.render(profile("single-gpu")), "Secret", "-keys")["data"] for _ in range(2))
    key = base64.b64decode(first["admin"]).decode()
    assert first["admin"] != second["admin"]
    path = tmp_path / "keys.json"
    path.write_bytes(base64.b64decode(first["keys.json"]))
    (record,) = read_keys(path).records
    assert record.key_id == id_of(key), "its checksum is right"
    assert record.matches(key)
    assert (record.kind, record.name, record.roles) == (KeyKind.KEY, "admin", {Role.ADMIN})
    assert record.state(utc_now()) == "valid"


def test_services_know_each_other_by_a_random_secret(helm: Helm, tmp_path: Path) -> None:
    first, second = (
        only(helm.render(profile("single-gpu")), "Secret", "-installation")["data"]["secret"]
        for _ in range(2)
    )
    assert first != second
    secret = only(helm.render(profile("single-gpu")), "Secret", "-installation")
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}, "it seals what is stored"
    (tmp_path / "secret").write_bytes(base64.b64decode(first))
    signer_of(tmp_path / "secret")


def test_secrets_of_ones_own_are_taken_instead(helm: Helm) -> None:
    made = [o["metadata"]["name"] for o in helm.render(profile("single-gpu"), **OWN) if o["kind"] == "Secret"]
    assert made == []


def test_services_find_them_where_pods_have_them(helm: Helm) -> None:
    objects = helm.render(profile("single-gpu"))
    (container,) = ray_templates(objects)["services"]["spec"]["containers"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    for app in serve_config_of(objects)["applications"]:
        auth = app["args"]["auth"]
        assert auth["mode"] == "required"
        named = {Path(auth[file]).parent for file in ("keys_file", "secret_file")}
        named |= {Path(o["credentials_file"]) for o in [app["args"].get("kv_store", {}).get("objects")] if o}
        assert {str(path) for path in named} <= mounts


def test_a_trial_has_the_keys_of_its_store_as_files_too(helm: Helm) -> None:
    for template in ray_templates(helm.render(profile("dev-cpu"))).values():
        assert ("quilt-kvquilt-minio", "volume") in secrets_of(template["spec"])
        assert "AWS_" not in str(template["spec"]["containers"][0]["env"])


def test_the_trial_store_itself_reads_its_keys_from_files(helm: Helm) -> None:
    spec = pod_specs(helm.render(profile("dev-cpu")))["Deployment"]
    assert set(secrets_of(spec)) == {("quilt-kvquilt-minio", "volume")}
    (container,) = spec["containers"]
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "keys"]
    (keys,) = [v["secret"] for v in spec["volumes"] if v["name"] == "keys"]
    files = {item["key"]: f"{mount['mountPath']}/{item['path']}" for item in keys["items"]}
    named = {variable["name"]: variable["value"] for variable in container["env"]}
    assert named["MINIO_ROOT_USER_FILE"] == files["AWS_ACCESS_KEY_ID"]
    assert named["MINIO_ROOT_PASSWORD_FILE"] == files["AWS_SECRET_ACCESS_KEY"]
    assert (mount["readOnly"], keys["defaultMode"]) == (True, 0o440)


def test_open_asks_nobody_and_says_so(helm: Helm) -> None:
    objects = helm.render(profile("dev-cpu"), **{"auth.mode": "open"})
    assert {str(app["args"]["auth"]) for app in serve_config_of(objects)["applications"]} == {
        "{'mode': 'open'}"
    }
    assert [o["metadata"]["name"] for o in objects if o["kind"] == "Secret"] == ["quilt-kvquilt-minio"]
