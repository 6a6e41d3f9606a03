"""Which settings a service starts with, and who may call it then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cluster.config import load_quilt
from cluster.models.settings import SECTIONS
from protos.kvquilt.v1.common_pb2 import RequestMeta
from shared.errors import ConfigError
from shared.principals.authentication import callers_of
from shared.principals.callers import Call, EverybodyIsOperator
from shared.principals.config import AuthConfig, AuthMode, TokensConfig
from shared.principals.keys import KeyKind, KeyRecord, hash_of, id_of, new_key
from shared.principals.keys_file import Keys, WatchedKeys, changing
from shared.principals.principal import Role
from shared.principals.secret import make_secret


@pytest.fixture
def auth(tmp_path: Path) -> AuthConfig:
    make_secret(tmp_path / "secret")
    return AuthConfig(
        AuthMode.AUTO, keys_file=str(tmp_path / "keys.json"), secret_file=str(tmp_path / "secret")
    )


@pytest.mark.parametrize("mode", [AuthMode.AUTO, AuthMode.REQUIRED])
def test_without_a_key_a_cluster_does_not_start(auth: AuthConfig, mode: AuthMode) -> None:
    with pytest.raises(ConfigError, match=r"^auth\.keys_file: .*kvquilt key create"):
        callers_of(replace(auth, mode=mode), "gateway")


def test_nor_with_a_damaged_file(auth: AuthConfig) -> None:
    Path(auth.keys_file).write_text("{")
    with pytest.raises(ConfigError, match=r"^auth\.keys_file: .*damaged"):
        callers_of(auth, "gateway")


@pytest.mark.parametrize("mode", [AuthMode.AUTO, AuthMode.REQUIRED, AuthMode.LOCAL])
def test_nor_without_a_secret(auth: AuthConfig, mode: AuthMode) -> None:
    with pytest.raises(ConfigError, match=r"^auth\.secret_file"):
        callers_of(replace(auth, mode=mode, secret_file="/nowhere"), "gateway")


async def test_with_a_key_it_does(auth: AuthConfig) -> None:
    key = new_key()
    with changing(Path(auth.keys_file)) as records:
        role = frozenset({Role.READER})
        records.append(KeyRecord(id_of(key), "anna", KeyKind.KEY, "acme", role, hash=hash_of(key)))
    callers = callers_of(auth, "gateway")
    caller = await callers.of_call("Answer", Call([("authorization", f"Bearer {key}")], "ipv4:10.0.0.9:5000"))
    assert caller.context(RequestMeta()).tenant == "acme"
    assert isinstance(WatchedKeys(Path(auth.keys_file)).current, Keys)


def test_or_an_issuer_of_tokens(auth: AuthConfig) -> None:
    callers_of(replace(auth, tokens=TokensConfig("https://id", "kvquilt", "jwks.json")), "gateway")


def test_a_service_by_itself_asks_nobody_and_one_of_an_installation_is_never_by_itself(
    tmp_path: Path,
) -> None:
    assert isinstance(callers_of(AuthConfig(), "kv_store"), EverybodyIsOperator)
    config = load_quilt({"data_dir": str(tmp_path)}, {}, resolve=str)
    for name in SECTIONS:
        with pytest.raises(ConfigError, match=r"^auth\.secret_file"):
            callers_of(getattr(config, name).auth, name)


def test_or_where_it_is_said_that_nobody_is_asked(auth: AuthConfig) -> None:
    for secret in (auth.secret_file, "", "/nowhere"):
        callers = callers_of(replace(auth, mode=AuthMode.OPEN, secret_file=secret), "gateway")
        assert (callers.identity is not None) is (secret == auth.secret_file)
