"""The keys of seals (``shared.kv_format.sealing``), derived from the installation's secret."""

from __future__ import annotations

import logging

from shared.kv_format import SealKey, SealKeys
from shared.principals.config import AuthConfig
from shared.principals.secret import derived, secrets_of

log = logging.getLogger(__name__)


def seal_keys_of(config: AuthConfig) -> SealKeys | None:
    """The first secret's seals, all are believed. None: there is no secret, so nothing is sealed.

    Raises:
        ConfigError: the secret cannot be read, or could be guessed.
    """
    keys = [SealKey(derived(secret, "seals")) for secret in secrets_of(config)]
    if not keys:
        log.warning("what is stored is not sealed: auth.secret_file names no file that is there")
        return None
    return SealKeys(keys, config.require_seals)
