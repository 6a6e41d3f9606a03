from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.kv_store.s3.bucket import encryption_of
from services.kv_store.s3.credentials import ENVIRONMENT, credentials_from
from services.kv_store.s3.settings import ObjectSettings
from shared.config import load
from shared.errors import ConfigError, FailedPrecondition


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "minio",
        "minio:9000",
        "minio.kvquilt.svc.cluster.local:9000",
        "10.0.0.7:9000",
        "[fd00::7]:9000",
        "s3.amazonaws.com",
    ],
)
def test_endpoints_are_hosts_with_or_without_port(endpoint: str) -> None:
    assert (
        load(ObjectSettings, {"endpoint": endpoint, "bucket": "kv.quilt-1", "prefix": "team/a"}).endpoint
        == endpoint
    )


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"endpoint": "http://minio:9000"}, "objects.endpoint"),
        ({"endpoint": "minio:9000/bucket"}, "objects.endpoint"),
        ({"endpoint": "minio:port"}, "objects.endpoint"),
        ({"bucket": "Kvquilt"}, "objects.bucket"),
        ({"bucket": "kv/quilt"}, "objects.bucket"),
        ({"bucket": ""}, "objects.bucket"),
        ({"prefix": "/a"}, "objects.prefix"),
        ({"prefix": "a//b"}, "objects.prefix"),
        ({"prefix": "../a"}, "objects.prefix"),
        ({"region": "eu west"}, "objects.region"),
        ({"ca_file": "/ca.pem", "secure": False}, "objects.ca_file"),
        ({"ca_file": "ca.pem"}, "objects.ca_file"),
        ({"credentials_file": "keys.json"}, "objects.credentials_file"),
        ({"connect_timeout_s": 0}, "objects.connect_timeout_s"),
        ({"read_timeout_s": -1}, "objects.read_timeout_s"),
        ({"retry_s": -1}, "objects.retry_s"),
        ({"connections": 0}, "objects.connections"),
        ({"part_bytes": 1000}, "objects.part_bytes"),
        ({"acces_key": "secret"}, "objects.acces_key"),
        ({"encryption": "aes"}, "objects.encryption"),
        ({"encryption": "kms", "secure": False}, "objects.encryption"),
        ({"kms_key_id": "alias/kv"}, "objects.kms_key_id"),
        ({"encryption": "kms", "kms_key_id": "a key"}, "objects.kms_key_id"),
    ],
    ids=str,
)
def test_a_bad_setting_is_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}: "):
        load(ObjectSettings, settings, "objects.")


@pytest.mark.parametrize(
    "names",
    [
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        ("MINIO_ACCESS_KEY", "MINIO_SECRET_KEY"),
        ("MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD"),
    ],
)
def test_keys_come_from_the_environment(names: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names[0], "me")
    with pytest.raises(FailedPrecondition, match="AWS_ACCESS_KEY_ID"):
        credentials_from("").retrieve()
    monkeypatch.setenv(names[1], "my secret")
    found = credentials_from("").retrieve()
    assert (found.access_key, found.secret_key, found.session_token) == ("me", "my secret", None)


def test_the_first_complete_pair_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIO_ACCESS_KEY", "me")
    monkeypatch.setenv("MINIO_SECRET_KEY", "my secret")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "incomplete")
    assert credentials_from("").retrieve().access_key == "me"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    found = credentials_from("").retrieve()
    assert (found.access_key, found.secret_key, found.session_token) == (
        "incomplete",
        "other secret",
        "token",
    )


def test_keys_come_from_a_file_and_change_with_it(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(json.dumps({"access_key": "json", "secret_key": "a"}))
    provider = credentials_from(str(path))
    assert (provider.retrieve().access_key, provider.retrieve().secret_key) == ("json", "a")
    path.write_text(json.dumps({"access_key": "json2", "secret_key": "b", "session_token": "t"}))
    assert (provider.retrieve().access_key, provider.retrieve().session_token) == ("json2", "t")
    path.write_text("[default]\naws_access_key_id = ini\naws_secret_access_key = s/+=\n")
    assert (provider.retrieve().access_key, provider.retrieve().secret_key) == ("ini", "s/+=")


def test_keys_come_from_a_mounted_secret_and_change_with_it(tmp_path: Path) -> None:
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "access-key").write_text(f"user {version}\n")
        (tmp_path / version / "secret-key").write_text(f"secret {version}\n")
    mounted = tmp_path / "mounted"
    mounted.symlink_to(tmp_path / "one")
    provider = credentials_from(str(mounted))
    assert provider.retrieve().secret_key == "secret one"
    mounted.unlink()
    mounted.symlink_to(tmp_path / "two")  # as the kubelet does
    assert (provider.retrieve().access_key, provider.retrieve().secret_key) == ("user two", "secret two")


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "{",
        "{}",
        '{"access_key": "a", "secret_key": ""}',
        "[default]\naws_secret_access_key = topsecret\n",
    ],
)
def test_a_file_without_keys_is_named_and_its_content_is_not(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content)
    with pytest.raises(FailedPrecondition, match=r"objects\.credentials_file") as raised:
        credentials_from(str(path)).retrieve()
    assert "topsecret" not in raised.value.detail
    assert str(tmp_path) not in raised.value.detail


@pytest.mark.parametrize(
    ("settings", "headers"),
    [
        ({}, None),
        ({"encryption": "s3"}, {"X-Amz-Server-Side-Encryption": "AES256"}),
        ({"encryption": "kms"}, {"X-Amz-Server-Side-Encryption": "aws:kms"}),
        (
            {"encryption": "kms", "kms_key_id": "arn:aws:kms:eu-west-1:1:key/a"},
            {
                "X-Amz-Server-Side-Encryption": "aws:kms",
                "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": "arn:aws:kms:eu-west-1:1:key/a",
            },
        ),
    ],
    ids=str,
)
def test_encryption_at_rest_is_asked_for_as_s3_has_it(
    settings: dict[str, Any], headers: dict[str, str] | None
) -> None:
    asked = encryption_of(load(ObjectSettings, settings))
    assert (asked.headers() if asked else None) == headers
