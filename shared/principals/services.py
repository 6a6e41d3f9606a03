"""Tells the installation's own services from everybody else, for servers that answer nobody else."""

from __future__ import annotations

from shared.errors import Unauthenticated
from shared.principals.credentials import SIGNED, Credentials, ServiceIdentity, no_credentials
from shared.principals.principal import Role
from shared.principals.signing import Signer
from shared.request import DEFAULT_TENANT


def check_service(signer: Signer, signed: str) -> None:
    """``signed``: what the call brought under ``SIGNED``; empty: nothing.

    Raises:
        Unauthenticated: no service of this installation makes the call.
    """
    if not signed or not signer.verify(signed).may(Role.INTERNAL):
        raise Unauthenticated(
            f"{SIGNED}: only services of this installation are answered here; call grpc_port, with a key"
        )


def credentials_of(identity: ServiceIdentity | None) -> Credentials:
    """Returns the credentials that a service shows to such servers. ``identity`` None: nobody asks."""
    return no_credentials if identity is None else identity.credentials(DEFAULT_TENANT)
