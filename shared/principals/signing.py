"""Signs principals with the installation's secret, so that one service believes what another says of its
caller.

``kvp1.PAYLOAD.MAC``: a JSON object and its HMAC-SHA256, both in URL-safe base64 without padding. The MAC
covers the prefix too, so a later version's payload is never read as this one's. Another installation has
another secret: what it signed means nothing here.
"""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Callable, Sequence

from shared.errors import Unauthenticated, Unavailable
from shared.principals.principal import Principal, Role

LEAST_SECRET_BYTES = 32
SKEW_S = 60.0
"""How far clocks of nodes may be apart: a signature lasts that much longer."""
_PREFIX = "kvp1"


class SignedTooLongAgo(Unavailable):
    """Who signed it is known; the call waited too long, or a clock was set meanwhile. Nothing is wrong with
    whoever asked: the next call is signed anew."""


class Signer:
    """Signs with the first of ``secrets`` and believes them all, so that a secret can be replaced while the
    services run."""

    def __init__(self, secrets: Sequence[bytes], now: Callable[[], float] = time.time) -> None:
        """
        Raises:
            ValueError: there is none, or one is too short to be guessed by nobody.
        """
        if not secrets or any(len(secret) < LEAST_SECRET_BYTES for secret in secrets):
            raise ValueError(f"a secret has at least {LEAST_SECRET_BYTES} bytes")
        self._secrets = tuple(secrets)
        self._now = now

    def sign(self, principal: Principal, lifetime_s: float) -> str:
        claims = {
            "name": principal.name,
            "tenant": principal.tenant,
            "roles": sorted(principal.roles),
            "groups": sorted(principal.groups),
            "until": self._now() + lifetime_s + SKEW_S,
        }
        signed = f"{_PREFIX}.{_encode(json.dumps(claims, separators=(',', ':')).encode())}"
        return f"{signed}.{_mac(self._secrets[0], signed)}"

    def verify(self, token: str) -> Principal:
        """
        Raises:
            Unauthenticated: nobody who holds the installation's secret signed it.
            SignedTooLongAgo
        """
        signed, _, mac = token.rpartition(".")
        prefix, _, payload = signed.partition(".")
        if prefix != _PREFIX or not self._is_ours(signed, mac):
            raise Unauthenticated("the caller's principal was not signed by this installation")
        claims = json.loads(_decode(payload))
        if self._now() > claims["until"]:
            raise SignedTooLongAgo(
                "the caller's principal was signed too long ago; call again, and if that does not help, set "
                "the clocks of the installation's machines right"
            )
        return Principal(
            claims["name"],
            claims["tenant"],
            frozenset(map(Role, claims["roles"])),
            frozenset(claims["groups"]),
        )

    def _is_ours(self, signed: str, mac: str) -> bool:
        given = mac.encode(errors="replace")
        return any(hmac.compare_digest(given, _mac(secret, signed).encode()) for secret in self._secrets)


def _mac(secret: bytes, signed: str) -> str:
    return _encode(hmac.digest(secret, signed.encode(errors="replace"), "sha256"))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
