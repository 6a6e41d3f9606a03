"""Settings of authentication: one section, ``auth``, for all services."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from shared.config import check_above_zero, check_least
from shared.principals.names import check_plain
from shared.principals.principal import Role

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Those whose keys can be told to everybody. A secret one would let whoever checks tokens make them."""


class AuthMode(enum.StrEnum):
    AUTO = "auto"
    REQUIRED = "required"
    LOCAL = "local"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class TokensConfig:
    """Tokens of an OpenID Connect provider: JWTs, beside keys.

    issuer: their `iss`; empty: there are none.
    audience: their `aud`.
    jwks: the provider's public keys, an `https://` address or a file.
    algorithms: by which they may be signed; asymmetric ones only.
    leeway_s: by which clocks may differ.
    refresh_s: after which the public keys are read again; an unknown one is looked for at once.
    name_claim, tenant_claim, roles_claim, groups_claim: where a token says these; `a.b` is b in a.
    tenant: of tokens that name none; empty: they are refused.
    roles: a value of `roles_claim` → reader, writer or admin; empty: the claim holds these words. Others
    mean nothing.
    """

    issuer: str = ""
    audience: str = ""
    jwks: str = ""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    leeway_s: float = 30.0
    refresh_s: float = 300.0
    name_claim: str = "sub"
    tenant_claim: str = "tenant"
    roles_claim: str = "roles"
    groups_claim: str = "groups"
    tenant: str = ""
    roles: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := [name for name in self.algorithms if name not in ALGORITHMS]:
            raise ValueError(f"algorithms: {unknown[0]!r} is not one of {', '.join(ALGORITHMS)}")
        if not self.algorithms:
            raise ValueError("algorithms: name at least one")
        if self.issuer:
            for name in ("audience", "jwks"):
                if not getattr(self, name):
                    raise ValueError(f"{name}: is required where issuer is set")
        if self.jwks.startswith("http://"):
            raise ValueError(
                "jwks: must be https:// or a file: whoever changes the keys on their way can be anybody"
            )
        may = [role.value for role in Role if role is not Role.INTERNAL]
        for claimed, role in self.roles.items():
            if role not in may:
                raise ValueError(f"roles.{claimed}: {role!r} is not one of {', '.join(may)}")
        if self.tenant:
            check_plain("tenant", self.tenant)
        check_least(self, 0, "leeway_s")
        check_above_zero(self, "refresh_s")


@dataclass(frozen=True, slots=True)
class CertificatesConfig:
    """Names of client certificates, as the proxy that ends TLS tells them. They count only from a proxy that
    sends a key of its own (`kvquilt key create --terminator`) in `x-kvquilt-terminator`, or, where `loopback`
    is set, that calls from this machine; from anybody else they are not even looked at.

    header: in which it tells them, in the form of Envoy's `x-forwarded-client-cert`.
    loopback: every caller of this machine is believed to be the proxy; only where nobody else can call from
    there.
    """

    header: str = "x-forwarded-client-cert"
    loopback: bool = False


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """Settings on who may call (docs/authentication.md).

    mode: `required`: whoever has no key, token or certificate is refused. `local`: the same as soon as there
    is a file of keys or an issuer of tokens; until then callers of this machine are its operators, and all
    others are refused. `open`: nobody is asked. `auto` is `local` for `kvquilt up`, and `required` on a
    cluster.
    keys_file: hashes of keys, written by `kvquilt key`; filled in: `auth/keys.json` in `data_dir`. On
    Kubernetes a mounted secret. What changes in it counts within a second.
    secret_file: what the installation's services know and nobody else does; filled in: `auth/secret` in
    `data_dir`, where `kvquilt up` makes one. On a cluster every node needs the same.
    tokens: of an OpenID Connect provider.
    certificates: of clients, behind a proxy that ends TLS.
    require_seals: stored KV and documents that no secret of this installation sealed are refused as damaged;
    else those without any seal, as earlier versions stored them, are believed until `kvquilt store migrate`
    has sealed them.
    """

    mode: AuthMode = AuthMode.AUTO
    keys_file: str = ""
    secret_file: str = ""
    tokens: TokensConfig = field(default_factory=TokensConfig)
    certificates: CertificatesConfig = field(default_factory=CertificatesConfig)
    require_seals: bool = False
