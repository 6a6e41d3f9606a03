"""Checks tokens of an OpenID Connect provider, and makes principals of their claims."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt
import urllib3

from shared.errors import Unavailable
from shared.principals.config import TokensConfig
from shared.principals.names import check_group, check_plain, check_principal_name
from shared.principals.principal import Principal, Role

log = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
_MOST_BYTES = 1 << 20
_LEAST_PAUSE_S = 10.0
_MOST_TOKEN_CHARS = 16 << 10
_MOST_GROUPS = 256
_MISSING = object()
Read = Callable[[str], bytes]
"""What stands at an address or in a file. Blocks; raises ``OSError``, ``urllib3.exceptions.HTTPError`` or
``ValueError``."""


class BadToken(Exception):
    """Says to the log why; the caller is not told."""


class TokenChecker:
    """``read``: of the provider's keys. They are read when the first token comes, again after
    ``refresh_s``, and when one comes that is signed with a key that nobody has seen, at most every ten
    seconds: whoever sends nonsense must not make us ask the provider. While they cannot be read, those that
    were read before hold."""

    def __init__(
        self, config: TokensConfig, read: Read | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config, self._read, self._clock = config, read or read_jwks, clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_s = self._tried_s = float("-inf")
        self._reading = asyncio.Lock()
        self.trouble = ""
        """Why the provider's keys could not be read the last time; empty: they could."""

    async def principal_of(self, token: str) -> Principal:
        """
        Raises:
            BadToken: it is none of this issuer for this audience now, or says too little.
            Unavailable: the provider's keys have never been read.
        """
        if len(token) > _MOST_TOKEN_CHARS:
            raise BadToken("too long")
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in self._config.algorithms:
                raise BadToken(f"signed by {str(header.get('alg'))[:20]!r}")
            key = await self._key(str(header.get("kid", "")))
            claims = jwt.decode(
                token,
                key,
                algorithms=list(self._config.algorithms),
                issuer=self._config.issuer,
                audience=self._config.audience,
                leeway=self._config.leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError as error:
            raise BadToken(f"{type(error).__name__}: {error}") from None
        return self._principal(claims)

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        config = self._config
        try:
            name = check_principal_name(config.name_claim, _text(_claim(claims, config.name_claim)))
            tenant = check_plain(
                config.tenant_claim, _text(_claim(claims, config.tenant_claim)) or config.tenant
            )
            groups = _words(_claim(claims, config.groups_claim))
            if len(groups) > _MOST_GROUPS:
                raise ValueError(f"{config.groups_claim}: more than {_MOST_GROUPS}")
            for group in groups:
                check_group(config.groups_claim, group)
            roles = self._roles(_words(_claim(claims, config.roles_claim)))
        except ValueError as error:
            raise BadToken(str(error)) from None
        return Principal(f"token/{name}", tenant, roles, frozenset(groups))

    def _roles(self, claimed: list[str]) -> frozenset[Role]:
        may = {role.value for role in Role if role is not Role.INTERNAL}
        named = [self._config.roles.get(word, "") for word in claimed] if self._config.roles else claimed
        return frozenset(Role(name) for name in named if name in may)

    async def _key(self, kid: str) -> jwt.PyJWK:
        """
        Raises:
            BadToken: the provider has no such key. Unavailable: its keys have never been read.
        """
        now = self._clock()
        if now - self._read_s >= self._config.refresh_s or kid not in self._keys:
            await self._refresh(now)
        if not self._keys:
            raise Unavailable("tokens cannot be checked now: the provider's keys cannot be read; retry")
        if (key := self._keys.get(kid)) is None:
            raise BadToken(f"signed with the key {kid[:40]!r}, which the provider does not have")
        return key

    async def _refresh(self, asked_s: float) -> None:
        async with self._reading:
            if self._tried_s >= asked_s or self._clock() - self._tried_s < _LEAST_PAUSE_S:
                return
            try:
                text = await asyncio.to_thread(self._read, self._config.jwks)
                self._keys = _keys_in(text, self._config.algorithms)
                self._read_s, self.trouble = self._clock(), ""
            except (OSError, ValueError, urllib3.exceptions.HTTPError, jwt.PyJWTError) as error:
                self.trouble = f"auth.tokens.jwks: the provider's keys cannot be read: {error}"
                log.warning(self.trouble)
            finally:
                self._tried_s = self._clock()


def read_jwks(place: str) -> bytes:
    """
    Raises:
        OSError, ValueError, urllib3.exceptions.HTTPError: it cannot be read, or is no such thing.
    """
    if urlsplit(place).scheme != "https":
        return Path(place).read_bytes()
    with urllib3.PoolManager() as pool:
        response = pool.request(
            "GET", place, timeout=_TIMEOUT_S, retries=False, redirect=False, preload_content=False
        )
        try:
            if response.status != 200:
                raise ValueError(f"{place} answered {response.status}")
            text = response.read(_MOST_BYTES + 1)
        finally:
            response.release_conn()
    if len(text) > _MOST_BYTES:
        raise ValueError(f"{place} answered more than {_MOST_BYTES} bytes")
    return bytes(text)


def _keys_in(text: bytes, algorithms: tuple[str, ...]) -> dict[str, jwt.PyJWK]:
    """By their ids; those for something else than signing by ``algorithms`` are left out.

    Raises:
        ValueError: it is no set of keys, or none of them is of use.
    """
    found = json.loads(text)
    keys: dict[str, jwt.PyJWK] = {}
    for described in found["keys"] if isinstance(found, dict) and isinstance(found.get("keys"), list) else []:
        try:
            key = jwt.PyJWK(described)
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
            continue  # of a kind that we do not know
        if key.public_key_use in (None, "sig") and key.algorithm_name in algorithms:
            keys[str(key.key_id or "")] = key
    if not keys:
        raise ValueError(f"there is no key for {', '.join(algorithms)}")
    return keys


def _claim(claims: Mapping[str, Any], path: str) -> object:
    """``path``: the claim of this name, or what its parts lead to."""
    if path in claims:
        return claims[path]
    value: object = claims
    for part in path.split("."):
        value = value.get(part, _MISSING) if isinstance(value, Mapping) else _MISSING
    return None if value is _MISSING else value


def _text(value: object) -> str:
    """
    Raises:
        ValueError: it is something else.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError("a name is no text")
    return value


def _words(value: object) -> list[str]:
    """Of a list, or of words with spaces between them, as `scope` has them."""
    if value is None:
        return []
    if isinstance(value, str):
        return value.split()
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("roles or groups are no list of names")
    return value
