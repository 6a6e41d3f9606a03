"""Tells a service who calls it, before anything of the call is looked at.

    a call comes …                        and is that of
    over a handle of Ray Serve            whoever the principal in it names, signed by the service that asks
    from outside with kvquilt-principal   a service of the installation, or its owner
    from outside with authorization       the key's or token's principal
    from outside through the terminator   the certificate's principal
    from outside with none of these       nobody, who may learn that the service lives; an operator, where
                                          nobody is asked (`auth.mode`)

The tenant that a request names counts for services and operators alone.

Longer than other modules: the ways of telling are tried one after the other.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from shared.errors import PermissionDenied, Unauthenticated
from shared.principals.certificates import certificate_names
from shared.principals.config import AuthConfig
from shared.principals.credentials import AUTHORIZATION, BEARER, SIGNED, ServiceIdentity
from shared.principals.keys import KeyKind, KeyRecord, id_of, looks_like_key, utc_now
from shared.principals.keys_file import Keys, WatchedKeys
from shared.principals.peers import comes_from_elsewhere, is_loopback
from shared.principals.principal import Principal, Role
from shared.principals.roles import role_for
from shared.principals.signing import SignedTooLongAgo, Signer
from shared.principals.tokens import BadToken, TokenChecker
from shared.request import DEFAULT_TENANT, RequestContext, check_name

log = logging.getLogger(__name__)

TERMINATOR = "x-kvquilt-terminator"
MISSING = "who calls is not said: send `authorization: Bearer KEY`; `kvquilt key create` makes one"
INVALID = "the key or token is not valid here; ask whoever runs this installation for another"
FOREIGN = (
    "only callers of this machine are served while there is no key; `kvquilt key create`, where the service "
    "runs, makes one"
)
ANONYMOUS = Principal("anonymous", DEFAULT_TENANT, frozenset())
_ONCE = (AUTHORIZATION, SIGNED, TERMINATOR)


class Meta(Protocol):
    """``RequestMeta`` of a request."""

    @property
    def request_id(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def deadline_ms(self) -> int: ...
    @property
    def principal(self) -> str: ...
    @property
    def traceparent(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def stream_interval_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Call:
    """Facts that a call brings along from outside. ``metadata``: names in lower case. ``peer``: see
    ``is_loopback``."""

    metadata: Iterable[tuple[str, str]]
    peer: str


@dataclass(frozen=True, slots=True)
class Caller:
    """The one who makes a call. ``principal`` None: an operator, at work for whichever tenant its requests
    name. ``speaks_for_others``: a service: its requests may say who asked it. ``must_say``: they must."""

    principal: Principal | None = None
    signer: Signer | None = None
    speaks_for_others: bool = False
    must_say: bool = False

    def context(self, meta: Meta, default_deadline_ms: int = 120_000) -> RequestContext:
        """
        Raises:
            Unauthenticated: nobody, or nobody of this installation, signed who asks.
            InvalidRequest: as ``RequestContext.create``.
        """
        return RequestContext.create(
            meta.request_id,
            meta.tenant,
            meta.deadline_ms,
            default_deadline_ms,
            self._principal(meta),
            self.signer,
            meta.traceparent,
            meta.priority,
            meta.stream_interval_ms,
        )

    def _principal(self, meta: Meta) -> Principal | None:
        if not self.speaks_for_others or self.signer is None:
            return self.principal
        if meta.principal:
            return self.signer.verify(meta.principal)
        if self.must_say:
            raise Unauthenticated("the call does not say who asked; services say it")
        if self.principal is not None and meta.tenant:
            return dataclasses.replace(self.principal, tenant=check_name("meta.tenant", meta.tenant))
        return self.principal


OPERATOR = Caller()


class Callers(Protocol):
    """Of one service."""

    async def of_call(self, method: str, call: Call | None) -> Caller:
        """``call`` None: it came over a handle.

        Raises:
            Unauthenticated: nobody knows who it is. PermissionDenied: he may not call ``method``.
            Unavailable: nobody can say now.
        """
        ...

    @property
    def trouble(self) -> str:
        """For operators; empty: all is well."""
        ...

    @property
    def identity(self) -> ServiceIdentity | None:
        """By which the service is known to those that it calls; None: they ask nobody."""
        ...


class EverybodyIsOperator:
    """Asks nobody."""

    trouble = ""

    def __init__(self, identity: ServiceIdentity | None = None) -> None:
        self.identity = identity

    async def of_call(self, method: str, call: Call | None) -> Caller:
        return Caller(signer=self.identity.signer if self.identity else None, speaks_for_others=call is None)


class AuthenticatedCallers:
    """``keys`` None and ``tokens`` None: nobody has such things. ``local``: callers of this machine are its
    operators as long as there is neither a file of keys nor an issuer of tokens."""

    def __init__(
        self,
        config: AuthConfig,
        identity: ServiceIdentity,
        keys: WatchedKeys | None = None,
        tokens: TokenChecker | None = None,
        local: bool = False,
        now: Callable[[], Any] = utc_now,
    ) -> None:
        self._config, self.identity, self._now = config, identity, now
        self._keys, self._tokens, self._local = keys, tokens, local

    @property
    def trouble(self) -> str:
        self._known()  # services behind the gateway may not have been called for long
        return "; ".join(filter(None, [source.trouble for source in (self._keys, self._tokens) if source]))

    async def of_call(self, method: str, call: Call | None) -> Caller:
        signer = self.identity.signer
        if call is None:
            return Caller(signer=signer, speaks_for_others=True, must_say=True)
        metadata = _single(call.metadata)
        if (service := self._service(metadata, call.peer)) is not None:
            caller = Caller(service, signer, speaks_for_others=True)
        else:
            caller = Caller(await self._principal(metadata, call.peer), signer)
        needed = role_for(method)
        principal = caller.principal
        if principal is not None and needed is not None and not principal.may(needed):
            if principal is ANONYMOUS:
                raise Unauthenticated(MISSING)
            log.info("refused: %s is no %s, which %s needs", principal.name, needed, method)
            raise PermissionDenied(f"{method} needs the role {needed}, which the caller does not have")
        return caller

    def _service(self, metadata: dict[str, str], peer: str) -> Principal | None:
        """None: none that knows the installation's secret makes the call."""
        if SIGNED not in metadata:
            return None
        try:
            return self.identity.signer.verify(metadata[SIGNED])
        except (Unauthenticated, SignedTooLongAgo):
            if self._asks_nobody() and is_loopback(peer):
                return None  # another stack's, which may be anybody here
            raise

    async def _principal(self, metadata: dict[str, str], peer: str) -> Principal | None:
        keys = self._known()
        if self._asks_nobody():
            if not is_loopback(peer) or comes_from_elsewhere(metadata):
                log.info("refused: %s is not of this machine", peer)
                raise Unauthenticated(FOREIGN)
            return None
        if AUTHORIZATION in metadata:
            return await self._of_bearer(metadata[AUTHORIZATION], keys)
        return self._of_certificate(metadata, peer, keys) or ANONYMOUS

    def _known(self) -> Keys | None:
        return self._keys.current if self._keys is not None else None

    def _asks_nobody(self) -> bool:
        if not self._local or self._tokens is not None or self._known() is not None:
            return False
        return self._keys is None or not self._keys.trouble

    async def _of_bearer(self, authorization: str, keys: Keys | None) -> Principal:
        kind, _, given = authorization.partition(" ")
        if kind.lower() != BEARER.strip().lower():
            raise _refused(f"{kind[:20]!r} is no way to say who calls")
        given = given.strip()
        if looks_like_key(given):
            record = self._record(given, keys)
            if record.kind is not KeyKind.KEY:
                raise _refused(f"the key {record.key_id} is the terminator's, not a caller's")
            return record.principal
        if self._tokens is None:
            raise _refused("no key, and no issuer of tokens is known")
        try:
            return await self._tokens.principal_of(given)
        except BadToken as bad:
            raise _refused(f"token: {bad}") from None

    def _of_certificate(self, metadata: dict[str, str], peer: str, keys: Keys | None) -> Principal | None:
        """None: nobody whose word counts told one."""
        told = metadata.get(self._config.certificates.header, "")
        if not told or keys is None or not self._is_terminator(metadata, peer, keys):
            return None
        names = certificate_names(told)
        for name in names:
            if record := keys.by_certificate.get(name):
                return self._valid(record).principal
        raise _refused(f"nobody is known by the certificate {' '.join(names)[:200]!r}")

    def _is_terminator(self, metadata: dict[str, str], peer: str, keys: Keys) -> bool:
        if given := metadata.get(TERMINATOR, ""):
            return self._record(given, keys).kind is KeyKind.TERMINATOR
        return self._config.certificates.loopback and is_loopback(peer)

    def _record(self, key: str, keys: Keys | None) -> KeyRecord:
        key_id = id_of(key)
        record = keys.by_id.get(key_id) if keys is not None and key_id else None
        if record is None or not record.matches(key):
            raise _refused(f"nobody has the key {key_id or '(mistyped)'}")
        return self._valid(record)

    def _valid(self, record: KeyRecord) -> KeyRecord:
        if (state := record.state(self._now())) != "valid":
            raise _refused(f"the {record.kind} {record.key_id} of {record.name} is {state}")
        return record


class ServiceCallers:
    """Those of a server that answers the installation's own services alone, and their owner."""

    trouble = ""

    def __init__(self, identity: ServiceIdentity) -> None:
        self.identity = identity

    async def of_call(self, method: str, call: Call | None) -> Caller:
        signer = self.identity.signer
        if call is None:
            return Caller(signer=signer, speaks_for_others=True, must_say=True)
        principal = signer.verify(_single(call.metadata).get(SIGNED, ""))
        if not principal.may(Role.INTERNAL):
            raise PermissionDenied(f"{method} is for services of the installation")
        return Caller(principal, signer, speaks_for_others=True)


def _single(metadata: Iterable[tuple[str, str]]) -> dict[str, str]:
    """
    Raises:
        Unauthenticated: who calls is said twice: a proxy may have looked at the other one.
    """
    found: dict[str, str] = {}
    for name, value in metadata:
        if name in found and name in _ONCE:
            raise Unauthenticated(f"{name} was sent twice; send it once")
        if isinstance(value, str):
            found[name] = value
    return found


def _refused(reason: str) -> Unauthenticated:
    """The log says why; the caller is told nothing that helps to guess."""
    log.info("refused: %s", reason)
    return Unauthenticated(INVALID)
