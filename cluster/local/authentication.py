"""Decides who may call a stack on one machine, and lets its owner call it.

The owner is whoever can read the installation's secret, which `kvquilt up` makes for its user alone: he signs
for himself, and needs no key.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.config import QuiltConfig
from cluster.models.settings import SECTIONS
from shared.errors import ConfigError
from shared.principals.authentication import check_somebody_may
from shared.principals.config import AuthConfig, AuthMode
from shared.principals.credentials import Credentials, no_credentials, signed
from shared.principals.keys_file import read_keys
from shared.principals.peers import is_here
from shared.principals.principal import Principal
from shared.principals.secret import make_secret, signer_of
from shared.request import DEFAULT_TENANT

_HOSTS = ("grpc_host", "http_host")


def guarded(config: QuiltConfig) -> QuiltConfig:
    """The settings of a stack of this machine, whose services have a secret.

    Raises:
        ConfigError: others could call, and there is nothing to tell them apart by; or the secret is none.
    """
    sections: dict[str, Any] = {name: getattr(config, name) for name in SECTIONS}
    sections = {name: replace(section, auth=_local(section.auth)) for name, section in sections.items()}
    config = replace(config, auth=_local(config.auth), **sections)
    for setting in _HOSTS:
        if not is_here(getattr(config, setting)):
            _check_told_apart(config.auth, f"{setting}: {getattr(config, setting)}")
    if config.auth.mode is AuthMode.REQUIRED:
        check_somebody_may(config.auth)
    make_secret(Path(config.auth.secret_file))
    signer_of(Path(config.auth.secret_file))
    return config


def operator_credentials(secret_file: str) -> Credentials:
    """Of the installation's owner, for whichever tenant he names. Without the secret: none."""
    if not secret_file or not Path(secret_file).exists():
        return no_credentials
    return signed(signer_of(Path(secret_file)), Principal.operator(DEFAULT_TENANT))


def _local(auth: AuthConfig) -> AuthConfig:
    return replace(auth, mode=AuthMode.LOCAL) if auth.mode is AuthMode.AUTO else auth


def _check_told_apart(auth: AuthConfig, opened: str) -> None:
    """
    Raises:
        ConfigError: there is nothing to tell callers from elsewhere apart by.
    """
    if auth.mode is AuthMode.LOCAL and not _somebody_is_known(auth):
        raise ConfigError(
            f"{opened} lets other machines call, and there is no key to tell callers apart by; make one with "
            "`kvquilt key create`, leave the setting out, or let everybody be an operator by auth.mode: open"
        )


def _somebody_is_known(auth: AuthConfig) -> bool:
    """
    Raises:
        ConfigError: the file of keys is damaged.
    """
    if auth.tokens.issuer:
        return True
    try:
        return bool(read_keys(Path(auth.keys_file)).records)
    except FileNotFoundError:
        return False
