"""Makes and checks API keys: ``kvq_ID_SECRET``, of which only a hash is kept.

The prefix lets scanners of repositories and logs find keys that got lost, and the last six characters are a
checksum by which they (and ``looks_like_key``) tell keys from what looks alike. The id says which record a
key belongs to; it is no secret and stands in logs. 40 characters of the secret are random, 238 bits: a plain
SHA-256 of the whole is as safe as a slow hash of a password, and costs every call microseconds.

The same records name client certificates and the terminator of TLS (``shared.principals.certificates``).
"""

from __future__ import annotations

import datetime
import enum
import hashlib
import hmac
import re
import secrets
import string
import zlib
from dataclasses import dataclass, field
from datetime import UTC

from shared.principals.names import check_group, check_plain, check_principal_name
from shared.principals.principal import Principal, Role

PREFIX = "kvq"
_ALPHABET = string.digits + string.ascii_letters
_ID_CHARS, _RANDOM_CHARS, _SUM_CHARS = 12, 40, 6
_FORM = re.compile(rf"{PREFIX}_([0-9A-Za-z]{{{_ID_CHARS}}})_([0-9A-Za-z]{{{_RANDOM_CHARS + _SUM_CHARS}}})")


class KeyKind(enum.StrEnum):
    """KEY is sent by callers, TERMINATOR by the proxy that ends their TLS and tells their certificates, and a
    CERTIFICATE is nothing that is sent: it is told."""

    KEY = "key"
    CERTIFICATE = "certificate"
    TERMINATOR = "terminator"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """
    key_id: of the record; part of the key.
    name: of whoever has it, as logs say it.
    hash: hexadecimal SHA-256 of the whole key; of a certificate empty.
    certificate: its name, ``URI=…``, ``DNS=…`` or ``CN=…``; of others empty.
    created, expires, revoked: in UTC.
    """

    key_id: str
    name: str
    kind: KeyKind
    tenant: str
    roles: frozenset[Role]
    groups: frozenset[str] = frozenset()
    hash: str = field(default="", repr=False)
    certificate: str = ""
    created: datetime.datetime | None = None
    expires: datetime.datetime | None = None
    revoked: datetime.datetime | None = None

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: names what is wrong.
        """
        if not re.fullmatch(rf"[0-9A-Za-z]{{{_ID_CHARS}}}", self.key_id):
            raise ValueError(f"id: must be {_ID_CHARS} letters and digits")
        check_principal_name("name", self.name)
        check_plain("tenant", self.tenant)
        for group in self.groups:
            check_group("groups", group)
        if Role.INTERNAL in self.roles:
            raise ValueError("roles: internal is what the services are to each other; no key has it")
        if not self.roles and self.kind is not KeyKind.TERMINATOR:
            raise ValueError("roles: name at least one of reader, writer, admin")
        if (self.kind is KeyKind.CERTIFICATE) != bool(self.certificate):
            raise ValueError("certificate: is the name of a certificate, and of nothing else")
        if self.certificate and self.certificate.partition("=")[0] not in ("URI", "DNS", "CN"):
            raise ValueError("certificate: must be URI=…, DNS=… or CN=…")
        if self.kind is not KeyKind.CERTIFICATE and not re.fullmatch(r"[0-9a-f]{64}", self.hash):
            raise ValueError("hash: must be a SHA-256 in hexadecimal")

    @property
    def principal(self) -> Principal:
        return Principal(f"{self.kind}/{self.name}", self.tenant, self.roles, self.groups)

    def state(self, now: datetime.datetime) -> str:
        """``valid``, ``expired`` or ``revoked``."""
        if self.revoked is not None and self.revoked <= now:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "valid"

    def matches(self, key: str) -> bool:
        """Takes as long whatever ``key`` is."""
        return hmac.compare_digest(self.hash.encode(), hash_of(key).encode())


def new_key(key_id: str = "") -> str:
    """A key that nobody knows yet; ``key_id`` empty: with an id of its own."""
    key_id = key_id or _random(_ID_CHARS)
    body = f"{PREFIX}_{key_id}_{_random(_RANDOM_CHARS)}"
    return body + _checksum(body)


def new_id() -> str:
    return _random(_ID_CHARS)


def id_of(key: str) -> str:
    """The id of a whole key; empty: it is none."""
    found = _FORM.fullmatch(key)
    if found is None or _checksum(key[:-_SUM_CHARS]) != key[-_SUM_CHARS:]:
        return ""
    return found[1]


def looks_like_key(text: str) -> bool:
    return text.startswith(f"{PREFIX}_")


def hash_of(key: str) -> str:
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(UTC)


def _random(num_chars: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(num_chars))


def _checksum(text: str) -> str:
    value, digits = zlib.crc32(text.encode()), ""
    for _ in range(_SUM_CHARS):
        value, digit = divmod(value, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits
