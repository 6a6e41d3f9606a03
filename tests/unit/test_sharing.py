"""Scopes of sharing, as an operator writes them."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.compose import serve_config
from cluster.config import load_quilt
from shared.errors import ConfigError
from shared.identity import kv_owner
from shared.request import check_name
from shared.sharing import SharingScopes

SCOPES = SharingScopes({"finance": ("acme", "beta"), "law": ("gamma",)})


def test_kv_is_a_scopes_or_its_tenants_own() -> None:
    owners = {tenant: SCOPES.owner(tenant) for tenant in ("acme", "beta", "gamma", "finance", "other")}
    assert owners["acme"] == owners["beta"]
    assert len(set(owners.values())) == 4
    assert (owners["finance"], owners["other"]) == ("finance", "other")
    assert [SCOPES.of(tenant) for tenant in ("acme", "gamma", "other")] == ["finance", "law", ""]
    assert SharingScopes().owner("acme") == "acme"


def test_no_tenant_can_be_called_like_what_a_scope_owns() -> None:
    with pytest.raises(Exception, match="is not a name"):
        check_name("tenant", kv_owner("acme", "finance"))


@pytest.mark.parametrize(
    ("scopes", "message"),
    [
        ({"a": ["x"], "b": ["y", "x"]}, r"^sharing_scopes\.b\[1\]: tenant 'x' is in 'a' already"),
        ({"a": ["x", "x"]}, r"^sharing_scopes\.a\[1\]: tenant 'x' is in 'a' already"),
        ({"a": ["x/y"]}, r"^sharing_scopes\.a\[0\]: 'x/y' is not a name"),
        ({"a": [""]}, r"^sharing_scopes\.a\[0\]: '' is not a name"),
        ({"a b": ["x"]}, r"^sharing_scopes: 'a b' is not a name"),
        ({"a": "x"}, r"^sharing_scopes\.a: expected a list"),
        ({"a": [3]}, r"^sharing_scopes\.a\[0\]: expected str"),
        (["x"], r"^sharing_scopes: expected a mapping"),
    ],
)
def test_what_cannot_be_is_refused_where_it_was_written(scopes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_quilt({"sharing_scopes": scopes}, {}, resolve=str)


def test_those_that_name_chunks_are_told_and_nobody_else() -> None:
    values = {"sharing_scopes": {"finance": ["acme", "beta"]}, "selector": {"model": "auxiliary"}}
    config = load_quilt(values, {}, resolve=str)
    told = {"finance": ("acme", "beta")}
    assert config.kv_store.sharing_scopes == config.generator.sharing_scopes == told
    applications = serve_config(values, config)["applications"]
    assert {app["name"] for app in applications if "sharing_scopes" in app["args"]} == {
        *("kv_store", "generator")
    }
    assert load_quilt({}, {}, resolve=str).generator.sharing_scopes == {}
