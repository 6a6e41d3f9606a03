"""Makes a service's callers and identity from its settings."""

from __future__ import annotations

from pathlib import Path

from shared.errors import ConfigError
from shared.principals.callers import AuthenticatedCallers, Callers, EverybodyIsOperator
from shared.principals.config import AuthConfig, AuthMode
from shared.principals.credentials import ServiceIdentity
from shared.principals.keys_file import WatchedKeys
from shared.principals.secret import signer_of
from shared.principals.tokens import TokenChecker


def callers_of(config: AuthConfig, service: str) -> Callers:
    """Those of ``service``. One that is built by itself, not as part of an installation (whose ``quilt.yaml``
    always names its files), asks nobody.

    Raises:
        ConfigError: names the setting without which nobody could call.
    """
    if _asks_nobody(config):
        return EverybodyIsOperator(identity_of(config, service))
    identity = _identity(config, service)
    keys = WatchedKeys(Path(config.keys_file)) if config.keys_file else None
    tokens = TokenChecker(config.tokens) if config.tokens.issuer else None
    local = config.mode is AuthMode.LOCAL
    if not local:
        check_somebody_may(config)
    return AuthenticatedCallers(config, identity, keys, tokens, local)


def identity_of(config: AuthConfig, service: str) -> ServiceIdentity | None:
    """Of ``service``; None: nobody is asked, and there is no secret. Raises like ``callers_of``."""
    if _asks_nobody(config) and not (config.secret_file and Path(config.secret_file).exists()):
        return None
    return _identity(config, service)


def check_somebody_may(config: AuthConfig) -> None:
    """
    Raises:
        ConfigError: there is no key, and no issuer of tokens.
    """
    if config.tokens.issuer:
        return
    if keys := WatchedKeys(Path(config.keys_file)) if config.keys_file else None:
        found = keys.current
        if keys.trouble:
            raise ConfigError(keys.trouble)
        if found is not None and found.records:
            return
    raise ConfigError(
        f"auth.keys_file: there is no key in {config.keys_file or 'it'}, and no auth.tokens.issuer, so "
        "nobody could call; make one with `kvquilt key create`, or let everybody be an operator by "
        "auth.mode: open"
    )


def _asks_nobody(config: AuthConfig) -> bool:
    """A service that is built by itself has no settings of who may call."""
    return config.mode is AuthMode.OPEN or config == AuthConfig()


def _identity(config: AuthConfig, service: str) -> ServiceIdentity:
    return ServiceIdentity(service, signer_of(Path(config.secret_file)))
