"""What callers from outside may call: the RPCs that are not for the services alone, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cluster.compose import servicer_functions
from shared import surface
from shared.principals.principal import Role
from shared.principals.roles import ROLES

PROTOS = Path(__file__).parents[2] / "protos" / "kvquilt" / "v1"
INTERNAL = {rpc for rpc, role in ROLES.items() if role is Role.INTERNAL}
FOR_SERVICES = {
    *("Retrieval.Index", "Retrieval.Unindex", "Retrieval.AdoptIndex", "Retrieval.ListIndexed"),
    *("Selection.Select", "Selection.Encode", "Selection.DescribeAuxiliary"),
    *("Retrieval.Restrict", "KvStore.Readable", "KvStore.CheckQuota"),
    *("KvStore.DeleteManifest", "KvStore.Prefetch", "Generation.SuspendVerdict"),
}


class Registered:
    """A server that notes what it is given."""

    def __init__(self) -> None:
        self.generic: set[str] = set()
        self.by_name: set[str] = set()

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self.generic |= {path.rpartition(".")[2].replace("/", ".") for path in handlers[0]._method_handlers}

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        self.by_name |= {f"{service.rpartition('.')[2]}.{method}" for method in handlers}


@pytest.fixture
def offered() -> set[str]:
    """By all the functions that Serve is given."""
    server = Registered()
    for path in servicer_functions():
        getattr(surface, path.removeprefix("shared.surface."))(Mock(), server)
    assert server.generic == server.by_name
    return server.by_name


def declared() -> set[str]:
    """Every RPC of the protos."""
    found, service = set(), ""
    for path in PROTOS.glob("*.proto"):
        for line in path.read_text(encoding="utf-8").splitlines():
            words = line.replace("(", " ").split()
            if words[:1] == ["service"]:
                service = words[1]
            if words[:1] == ["rpc"]:
                found.add(f"{service}.{words[1]}")
    return found


def test_everything_is_offered_but_what_services_alone_call(offered: set[str]) -> None:
    assert offered | INTERNAL | {"Selection.Health"} == declared()
    assert not offered & INTERNAL


def test_what_services_alone_call_is_judged_one_by_one(offered: set[str]) -> None:
    assert {rpc for rpc in INTERNAL if not rpc.startswith("NodeStore.")} == FOR_SERVICES
    assert not {rpc for rpc in offered if rpc.startswith(("NodeStore.", "Selection."))}


def test_no_public_rpc_has_the_name_of_one_for_the_services(offered: set[str]) -> None:
    """Serve's proxy calls the method of that name on whichever application the metadata names."""
    names = {rpc.partition(".")[2] for rpc in offered}
    assert not names & {rpc.partition(".")[2] for rpc in INTERNAL}
