"""Opens gRPC channels: `host:port` as it is, `grpcs://host:port` by TLS."""

from __future__ import annotations

import os
import re
from pathlib import Path

import grpc

from shared.clients.grpc_transport import CHANNEL_OPTIONS
from shared.errors import ConfigError

PLAIN, TLS = "grpc://", "grpcs://"
_ADDRESS = re.compile(r"(?:grpcs?://)?((?:[\w.-]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5}))")


def is_address(text: str) -> bool:
    """`host:port`, with one of the schemes or without."""
    found = _ADDRESS.fullmatch(text)
    return found is not None and 1 <= int(found[2]) <= 65535


def channel_to(address: str, ca_file: str = "", server_name: str = "") -> grpc.aio.Channel:
    """``ca_file``, by TLS only: PEM of the authorities, or the certificate, that are trusted; empty: those
    that ``SSL_CERT_FILE`` names, else gRPC's own. ``server_name``: that the certificate is for; empty: the
    address's.

    Raises:
        ConfigError: the authorities cannot be read.
    """
    if not address.startswith(TLS):
        return grpc.aio.insecure_channel(address.removeprefix(PLAIN), options=CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(_authorities(ca_file))
    named = (("grpc.ssl_target_name_override", server_name),) if server_name else ()
    return grpc.aio.secure_channel(address.removeprefix(TLS), credentials, options=(*CHANNEL_OPTIONS, *named))


def _authorities(ca_file: str) -> bytes | None:
    path = ca_file or os.environ.get("SSL_CERT_FILE", "")
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path}: certificates of authorities cannot be read ({error.strerror}); name a PEM file by "
            "--ca, or by SSL_CERT_FILE"
        ) from None
