"""Reads ``applications.NAME.address``: which applications another cluster serves, and whether it can.

KV is kept where it is computed: generators and selectors map files of their own node's agent. Hence the store
and all who compute for it are of one cluster, and only what needs no more than the public services of the
others can be elsewhere (the table in ``docs/transport.md``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.clients.channels import PLAIN, is_address
from shared.config import load
from shared.errors import ConfigError

_KEEP_KV = ("kv_store", "generator")
_NEEDS = {
    "kv_store": (_KEEP_KV, "generators write the files of their own node's store"),
    "generator": (_KEEP_KV, "a generator keeps KV in the store of its own cluster"),
    "selector": (_KEEP_KV, "a selector keeps KV in the store of its own cluster, as who asks it does"),
    "ingestion": (
        ("retrieval", *_KEEP_KV),
        "what it ingests goes to the index and the store of its own cluster",
    ),
    "retrieval": ((), ""),
}


@dataclass(frozen=True, slots=True)
class ApplicationConfig:
    """``address``: ``host:port`` of another cluster's ``grpc_port``, or ``grpcs://host:port`` of what ends
    TLS in front of it; empty: the application is deployed here."""

    address: str = ""

    def __post_init__(self) -> None:
        if self.address and not is_address(self.address):
            raise ValueError(f"address: must be host:port, got {self.address!r}; by TLS grpcs://host:port")
        object.__setattr__(self, "address", self.address.removeprefix(PLAIN))


def addresses_in(merged: Mapping[str, Any]) -> dict[str, str]:
    """Application → ``host:port``, of those that are not deployed here. ``merged``: the operator's settings,
    every section among them.

    Raises:
        ConfigError: an address is none, cannot work with the others, or meets settings that it makes void.
    """
    applications = merged.get("applications") or {}
    if not isinstance(applications, Mapping):
        raise ConfigError(f"applications: expected a section, got {applications!r}")
    addresses = {}
    for name, values in applications.items():
        if name == "gateway":
            raise ConfigError(
                "applications.gateway: nobody here calls the gateway, it calls the others; to ask another "
                "cluster's, use `kvquilt --target HOST:PORT`"
            )
        if name not in _NEEDS:
            raise ConfigError(f"applications.{name}: unknown application; known here: {', '.join(_NEEDS)}")
        if not isinstance(values, Mapping):
            raise ConfigError(f"applications.{name}: expected a section, got {values!r}")
        if address := load(ApplicationConfig, values, f"applications.{name}.").address:
            addresses[name] = address
    _check(addresses, merged)
    return addresses


def _check(addresses: Mapping[str, str], merged: Mapping[str, Any]) -> None:
    for name, address in addresses.items():
        needed, why = _NEEDS[name]
        if missing := [other for other in needed if other not in addresses and other != name]:
            others = " and ".join(f"applications.{other}.address" for other in missing)
            raise ConfigError(f"applications.{name}.address: {why}; name {others} too, or leave it out")
        if setting := _first_setting(name, merged[name]):
            raise ConfigError(
                f"{setting}: has no effect, since {name} is not deployed here but served at {address} "
                f"(applications.{name}.address); set it there, or leave the address out"
            )
    if "kv_store" in addresses and "selector" not in addresses and merged["selector"].get("model"):
        raise ConfigError(
            "selector.model: a selector keeps KV in the store of its own cluster, which is not deployed here "
            "(applications.kv_store.address); name applications.selector.address instead, or leave both out"
        )


def _first_setting(name: str, value: Any) -> str:
    """The dotted name of one that is given; empty: there is none."""
    while isinstance(value, Mapping) and value:
        key, value = next(iter(value.items()))
        name = f"{name}.{key}"
    return name if "." in name else ""
