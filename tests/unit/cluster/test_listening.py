"""What a stack on one machine listens on."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpc.aio import _server
from ray._private import ray_constants

from cluster.local.certificate import server_name
from cluster.local.listening import address, chosen, environment, listen_here, reachable
from shared.errors import ConfigError
from tests.certificates import Authority


@pytest.mark.parametrize(
    ("wanted", "listened_on"),
    [
        ("[::]:9000", "127.0.0.1:9000"),  # Serve's proxy
        ("[::]:0", "127.0.0.1:0"),  # a replica's own server
        ("0.0.0.0:7000", "127.0.0.1:7000"),
        ("127.0.0.1:7000", "127.0.0.1:7000"),
        ("192.0.2.7:7000", "192.0.2.7:7000"),  # kv_store.host: the operator said so
        ("unix:///tmp/socket", "unix:///tmp/socket"),
    ],
)
def test_what_would_listen_everywhere_listens_on_this_machine(wanted: str, listened_on: str) -> None:
    assert chosen(wanted, "127.0.0.1:9000") == listened_on


def test_the_operator_can_open_the_public_port_and_no_other() -> None:
    public = address("::", 9000)
    assert chosen("[::]:9000", public) == "[::]:9000"
    assert chosen("[::]:0", public) == "127.0.0.1:0"


def test_a_stack_that_listens_everywhere_is_reached_on_this_machine() -> None:
    assert [reachable(host) for host in ("", "0.0.0.0", "::", "::1", "192.0.2.7")] == [
        *["127.0.0.1"] * 3,
        "::1",
        "192.0.2.7",
    ]


def test_the_variables_are_those_that_ray_reads() -> None:
    variables = environment("127.0.0.1", 9000)
    assert ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR in variables
    module, _, hook = variables[ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR].rpartition(".")
    assert (module, hook) == ("cluster.local.listening", "listen_here")


def test_only_the_public_port_is_opened_by_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, str]] = []

    class Server:
        def add_insecure_port(self, address: str) -> int:
            opened.append(("plain", address))
            return 1

        def add_secure_port(self, address: str, credentials: object) -> int:
            opened.append(("tls", address))
            return 1

    certificate, key = Authority.in_directory(tmp_path / "ca", "ours").issue(tmp_path, "quilt.example")
    for name, value in environment("0.0.0.0", 9000, str(certificate), str(key)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(_server, "Server", Server)
    listen_here()
    for wanted in ("[::]:9000", "[::]:0"):
        Server().add_insecure_port(wanted)
    assert opened == [("tls", "0.0.0.0:9000"), ("plain", "127.0.0.1:0")]


def test_a_certificate_is_asked_for_by_its_own_name(tmp_path: Path) -> None:
    certificate, key = Authority.in_directory(tmp_path / "ca", "ours").issue(tmp_path, "quilt.example")
    assert server_name(str(certificate)) == "quilt.example"
    assert server_name(str(tmp_path / "ca" / "ca.crt")) == "ours"
    for wrong in (key, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match=r"tls_cert: .* is no PEM certificate"):
            server_name(str(wrong))
