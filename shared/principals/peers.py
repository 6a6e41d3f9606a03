"""Tells callers of this machine from others, by the address that they call from."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
_PAGES = ("host", "origin")
_HERE = "localhost"


def is_loopback(peer: str) -> bool:
    """``peer``: as gRPC tells it (``ipv4:127.0.0.1:5000``, ``ipv6:%5B::1%5D:5000``, ``unix:…``), or a mere
    address."""
    kind, _, rest = peer.partition(":")
    if kind in ("unix", "unix-abstract"):
        return True
    if kind == "ipv4":
        host = rest.rpartition(":")[0]
    elif kind == "ipv6":
        host = unquote(rest).rpartition(":")[0].strip("[]")
    else:
        host = peer
    return _is_loopback_address(host)


def comes_from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Whether a caller of this machine asks on behalf of another one: a proxy that passes on what somebody
    else asked, or a browser that shows somebody else's page, even if that page's name leads here."""
    if any(name in headers for name in _FORWARDED):
        return True
    return any(not is_here(headers[name]) for name in _PAGES if name in headers)


def is_here(place: str) -> bool:
    """Whether it names this machine. ``place``: an origin, or a host with or without its port."""
    if _is_loopback_address(place):
        return True
    try:
        host = urlsplit(place if "//" in place else f"//{place}").hostname or ""
    except ValueError:
        return False
    return host == _HERE or host.endswith(f".{_HERE}") or _is_loopback_address(host)


def _is_loopback_address(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
