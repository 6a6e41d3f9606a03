"""Makes what a call brings along so that the other side knows who calls: metadata of gRPC, headers of
HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shared.principals.principal import Principal, Role
from shared.principals.signing import Signer

AUTHORIZATION, SIGNED = "authorization", "kvquilt-principal"
BEARER = "Bearer "
_CALL_S = 60.0

Metadata = tuple[tuple[str, str], ...]
Credentials = Callable[[], Metadata]
"""Asked anew for every call: signatures expire."""


def no_credentials() -> Metadata:
    return ()


def bearer(key: str) -> Credentials:
    """``key``: or a token."""
    return lambda: ((AUTHORIZATION, f"{BEARER}{key}"),)


def signed(signer: Signer, principal: Principal) -> Credentials:
    """For whoever holds the installation's secret: its services, and its owner on the same machine."""
    return lambda: ((SIGNED, signer.sign(principal, _CALL_S)),)


@dataclass(frozen=True, slots=True)
class ServiceIdentity:
    """A service as the others know it: ``signer`` vouches for it, and for who asked it."""

    name: str
    signer: Signer

    def acting_for(self, tenant: str) -> Principal:
        """On its own behalf, not on a caller's."""
        return Principal(f"service/{self.name}", tenant, frozenset({Role.INTERNAL}))

    def sign(self, tenant: str, lifetime_s: float) -> str:
        return self.signer.sign(self.acting_for(tenant), lifetime_s)

    def credentials(self, tenant: str) -> Credentials:
        return signed(self.signer, self.acting_for(tenant))
