"""`kvquilt key`, and who the commands say that calls."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from cluster.cli.main import main
from cluster.cli.session import Session
from cluster.config import QuiltConfig, load_quilt
from cluster.local.authentication import guarded, operator_credentials
from cluster.local.state import RunDirectory, StackState
from shared.config import API_KEY, merge_env
from shared.errors import ConfigError, NotFound
from shared.principals.config import AuthMode
from shared.principals.credentials import SIGNED
from shared.principals.keys import id_of
from shared.principals.keys_file import read_keys
from shared.principals.principal import Principal, Role
from shared.principals.secret import make_secret, signer_of


def invoke(data_dir: Path, *args: str) -> Result:
    return CliRunner().invoke(main, ["--data-dir", str(data_dir), *args], catch_exceptions=False)


def created(data_dir: Path, *args: str) -> str:
    result = invoke(data_dir, "key", "create", *args)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def listed(data_dir: Path) -> list[dict[str, Any]]:
    result = invoke(data_dir, "key", "list", "--json")
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_key_is_printed_once_and_alone_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    key = created(tmp_path, "anna", "--role", "writer", "--tenant", "acme", "--group", "a", "--group", "b")
    path = tmp_path / "auth" / "keys.json"
    (record,) = read_keys(path).records
    assert record.matches(key)
    assert record.principal == Principal("key/anna", "acme", frozenset({Role.WRITER}), frozenset({"a", "b"}))
    assert key not in path.read_text()
    assert key not in invoke(tmp_path, "key", "list").output


def test_of_roles_the_least_is_given_where_none_is_named(tmp_path: Path) -> None:
    created(tmp_path, "anna")
    (record,) = read_keys(tmp_path / "auth" / "keys.json").records
    assert (record.roles, record.tenant, record.expires) == (frozenset({Role.READER}), "default", None)


def test_keys_are_shown_with_what_became_of_them(tmp_path: Path) -> None:
    old, _ = created(tmp_path, "anna"), created(tmp_path, "bert", "--expires", "1h")
    assert invoke(tmp_path, "key", "revoke", id_of(old)).exit_code == 0
    assert [(row["name"], row["state"], bool(row["expires"])) for row in listed(tmp_path)] == [
        ("anna", "revoked", False),
        ("bert", "valid", True),
    ]
    shown = invoke(tmp_path, "key", "list").output
    assert re.search(rf"{id_of(old)} +anna +key +default +reader +revoked", shown)


def test_a_key_may_be_taken_back_later(tmp_path: Path) -> None:
    key = created(tmp_path, "anna")
    assert "revoked from" in invoke(tmp_path, "key", "revoke", id_of(key), "--in", "1h").output
    assert [row["state"] for row in listed(tmp_path)] == ["valid"]


def test_certificates_and_the_terminator_have_records_too(tmp_path: Path) -> None:
    assert created(tmp_path, "search", "--certificate", "URI=spiffe://acme/search", "--group", "staff") == ""
    assert created(tmp_path, "envoy", "--terminator").startswith("kvq_")
    certificate, terminator = listed(tmp_path)
    assert (certificate["kind"], certificate["groups"]) == ("URI=spiffe://acme/search", ["staff"])
    assert (terminator["kind"], terminator["roles"]) == ("terminator", [])


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["a b"], "name"),
        (["anna", "--tenant", "../x"], "tenant"),
        (["anna", "--certificate", "anna"], "certificate: must be URI"),
        (["envoy", "--terminator", "--role", "admin"], "--terminator"),
        (["anna", "--role", "internal"], "internal"),
        (["anna", "--group", "a b"], "groups"),
    ],
)
def test_what_cannot_be_is_told_by_name_and_nothing_is_kept(
    tmp_path: Path, args: list[str], named: str
) -> None:
    result = invoke(tmp_path, "key", "create", *args)
    assert result.exit_code == 2
    assert named in result.output
    assert not (tmp_path / "auth" / "keys.json").exists()


def test_a_key_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert invoke(tmp_path, "key", "revoke", "x").exit_code == 3
    assert not (tmp_path / "auth").exists()
    created(tmp_path, "anna")
    result = invoke(tmp_path, "key", "revoke", "x")
    assert (result.exit_code, "kvquilt key list" in result.output) == (3, True)


def test_a_damaged_file_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text("{")
    for args in (["create", "anna"], ["list"], ["revoke", "x"]):
        result = invoke(tmp_path, "key", *args, "--file", str(path))
        assert (result.exit_code, "damaged" in result.output) == (2, True)
    assert path.read_text() == "{"


def test_a_file_elsewhere_may_be_named(tmp_path: Path) -> None:
    path = tmp_path / "secret" / "keys.json"
    created(tmp_path / "data", "anna", "--file", str(path))
    assert read_keys(path).records[0].name == "anna"
    assert not (tmp_path / "data").exists()


class TestWhoCalls:
    def session(self, data_dir: Path, target: str = "", key: str = "") -> Session:
        out = Console(file=io.StringIO())
        return Session(data_dir, True, target, "", out, out, key)

    @pytest.fixture
    def running(self, tmp_path: Path) -> Path:
        run, secret = RunDirectory(tmp_path), tmp_path / "auth" / "secret"
        make_secret(secret)
        run.make()
        state = StackState(1, "ready", "127.0.0.1:9000", "", "", "demo", "", secret_file=str(secret))
        run.write(replace(state, keys_file=str(tmp_path / "elsewhere.json")))
        return tmp_path

    def test_the_owner_of_the_local_stack_signs_for_himself(self, running: Path) -> None:
        with RunDirectory(running).lock():
            session = self.session(running)
            ((name, value),) = session.credentials()
            assert session.keys_file == running / "elsewhere.json"
        assert name == SIGNED
        assert signer_of(running / "auth" / "secret").verify(value) == Principal.operator("default")

    def test_a_key_is_stronger(self, running: Path) -> None:
        with RunDirectory(running).lock():
            assert self.session(running, key="kvq_x").credentials() == (("authorization", "Bearer kvq_x"),)

    def test_a_server_that_was_named_is_told_nothing_of_the_local_secret(self, running: Path) -> None:
        with RunDirectory(running).lock():
            assert self.session(running, "other:9000").credentials() == ()

    def test_without_a_stack_there_is_nobody_to_call(self, tmp_path: Path) -> None:
        with pytest.raises(NotFound):
            self.session(tmp_path).credentials()
        assert self.session(tmp_path).keys_file == tmp_path / "auth" / "keys.json"

    def test_a_secret_that_is_not_there_is_no_error(self, tmp_path: Path) -> None:
        assert operator_credentials("")() == ()
        assert operator_credentials(str(tmp_path / "none"))() == ()


def test_a_callers_key_is_no_setting() -> None:
    assert merge_env({}, {API_KEY: "kvq_x", "KVQUILT_GRPC_PORT": "1"}) == {"grpc_port": 1}


class TestUp:
    def config(self, tmp_path: Path, **values: object) -> QuiltConfig:
        return load_quilt({"data_dir": str(tmp_path), **values}, {}, resolve=str)

    def test_serves_this_machine_alone_and_has_a_secret(self, tmp_path: Path) -> None:
        config = guarded(self.config(tmp_path))
        assert config.auth.mode is config.gateway.auth.mode is config.kv_store.auth.mode is AuthMode.LOCAL
        assert len((tmp_path / "auth" / "secret").read_text()) == 65

    @pytest.mark.parametrize("setting", ["grpc_host", "http_host"])
    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.9", "example.com"])
    def test_opens_nothing_to_others_without_a_key(self, tmp_path: Path, setting: str, host: str) -> None:
        config = self.config(tmp_path, **{setting: host})
        with pytest.raises(ConfigError, match=rf"^{setting}: {host} .*kvquilt key create.*auth\.mode: open"):
            guarded(config)
        assert guarded(self.config(tmp_path, **{setting: host}, auth={"mode": "open"}))
        created(tmp_path, "anna")
        assert guarded(config).auth.mode is AuthMode.LOCAL

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
    def test_needs_none_for_this_machine(self, tmp_path: Path, host: str) -> None:
        assert guarded(self.config(tmp_path, grpc_host=host))

    def test_does_not_start_without_a_key_where_one_is_required(self, tmp_path: Path) -> None:
        config = self.config(tmp_path, auth={"mode": "required"})
        with pytest.raises(ConfigError, match=r"^auth\.keys_file"):
            guarded(config)
        created(tmp_path, "anna")
        assert guarded(config).auth.mode is AuthMode.REQUIRED

    def test_names_the_setting_of_a_secret_that_could_be_guessed(self, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("short")
        config = self.config(tmp_path, auth={"secret_file": str(tmp_path / "secret")})
        with pytest.raises(ConfigError, match=r"^auth\.secret_file"):
            guarded(config)

    @pytest.mark.parametrize(
        ("auth", "named"),
        [
            ({"mode": "closed"}, "auth.mode"),
            ({"key_file": "x"}, "auth.key_file: unknown"),
            ("open", "auth: expected a section"),
            ({"tokens": {"issuer": "x"}}, "auth.tokens.audience"),
        ],
    )
    def test_a_wrong_setting_is_named(self, tmp_path: Path, auth: object, named: str) -> None:
        with pytest.raises(ConfigError, match=f"^{named}"):
            self.config(tmp_path, auth=auth)
