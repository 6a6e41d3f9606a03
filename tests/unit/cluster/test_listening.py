"""What a stack on one machine listens on."""

from __future__ import annotations

import pytest
from ray._private import ray_constants

from cluster.local.listening import address, chosen, environment, reachable


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
