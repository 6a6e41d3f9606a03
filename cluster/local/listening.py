"""Keeps what a stack on one machine listens on to that machine.

Ray's own processes listen where their node's address is, so that is made 127.0.0.1. The servers of Ray Serve
listen on every interface and offer no setting: the proxy, whose port everybody is meant to call, and a server
in each replica, which believes whatever it is sent. ``listen_here``, which Ray runs first in each of its
workers, takes them back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

LOOPBACK = "127.0.0.1"
_EVERYWHERE = ("[::]:", "0.0.0.0:")
_PUBLIC = "_KVQUILT_GRPC_ADDRESS"
_TLS = "_KVQUILT_GRPC_TLS"


def environment(grpc_host: str, grpc_port: int, tls_cert: str = "", tls_key: str = "") -> dict[str, str]:
    """Variables for the process that starts Ray, before it imports Ray. Only the proxy's port is opened on
    ``grpc_host``, and by TLS if a certificate is given."""
    return {
        # Ray asks so whether a node may have another address than 127.0.0.1, of all systems
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR": f"{__name__}.{listen_here.__name__}",
        _PUBLIC: address(grpc_host, grpc_port),
        _TLS: json.dumps([tls_key, tls_cert] if tls_cert else []),
    }


def address(host: str, port: int | str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable(host: str) -> str:
    """Returns where this machine itself reaches what listens on ``host``."""
    return LOOPBACK if host in ("", "0.0.0.0", "::") else host


def listen_here() -> None:
    """From now on gRPC servers of this process that would listen on every interface do so where they
    should, the public one by TLS if there is a certificate."""
    from grpc.aio import _server

    public, tls = os.environ[_PUBLIC], json.loads(os.environ.get(_TLS, "[]"))
    add_secure = _server.Server.add_secure_port

    def narrowed(add: Callable[..., int]) -> Callable[..., int]:
        def add_port(self: Any, wanted: str, *credentials: Any) -> int:
            address = chosen(wanted, public)
            if tls and address == public:
                return int(add_secure(self, address, _shown(*tls)))
            return add(self, address, *credentials)

        return add_port

    for name in ("add_insecure_port", "add_secure_port"):
        setattr(_server.Server, name, narrowed(getattr(_server.Server, name)))


def _shown(key_file: str, certificate_file: str) -> grpc.ServerCredentials:
    pair = Path(key_file).read_bytes(), Path(certificate_file).read_bytes()
    return grpc.ssl_server_credentials([pair])


def chosen(wanted: str, public: str) -> str:
    """The address to listen on instead of ``wanted``; ``public``: the proxy's."""
    port = wanted.rpartition(":")[2]
    if not wanted.startswith(_EVERYWHERE):
        return wanted
    return public if port == public.rpartition(":")[2] else address(LOOPBACK, port)
