"""Keeps the installation's secret: what its services know and nobody else does.

A file of one or more lines, each a secret of at least 32 characters. The first one signs, all are believed:
a new one goes first, and the old one leaves when every service has started anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
from pathlib import Path

from shared.errors import ConfigError
from shared.principals.config import AuthConfig
from shared.principals.signing import LEAST_SECRET_BYTES, Signer
from shared.private_files import make_private_directory, open_private

_PRINCIPALS = "principals"


def make_secret(path: Path) -> None:
    """Writes a random secret for nobody but its owner, unless there is one."""
    if not path.parent.exists():
        make_private_directory(path.parent)
    with contextlib.suppress(FileExistsError), open(path, "x", opener=open_private) as file:
        file.write(secrets.token_hex(32) + "\n")


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """
    Raises:
        ConfigError: there is none, it cannot be read, or it could be guessed.
    """
    try:
        lines = [line.strip() for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(
            f"auth.secret_file: {path} cannot be read ({error.strerror}); all services of an installation "
            "need the same: `openssl rand -hex 32` makes one"
        ) from None
    if not lines or any(len(line) < LEAST_SECRET_BYTES for line in lines):
        raise ConfigError(
            f"auth.secret_file: {path} must hold lines of at least {LEAST_SECRET_BYTES} characters; "
            "`openssl rand -hex 32` makes one"
        )
    return tuple(lines)


def secrets_of(config: AuthConfig) -> tuple[bytes, ...]:
    """Empty where there is no file. Raises like ``read_secrets``."""
    path = Path(config.secret_file)
    return read_secrets(path) if config.secret_file and path.exists() else ()


def derived(secret: bytes, purpose: str) -> bytes:
    """A secret of its own for each purpose: what one is used for tells nothing of the others."""
    return hmac.digest(secret, f"kvquilt {purpose}".encode(), hashlib.sha256)


def signer_of(path: Path) -> Signer:
    """
    Raises:
        ConfigError: as ``read_secrets``.
    """
    return Signer([derived(secret, _PRINCIPALS) for secret in read_secrets(path)])
