"""Lists which calls are on record, and what of them: nothing that a document, a question or an answer says.

``shared.rpc``, and HTTP, record them where they come in from outside; what the services ask of each other on
the way is part of the call that is on record already.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from shared.audit import OK, Actor, AuditConfig, AuditLog
from shared.errors import KvquiltError, Overloaded, PermissionDenied, Unauthenticated
from shared.principals.config import AuthConfig
from shared.principals.secret import derived, secrets_of
from shared.principals.signing import SignedTooLongAgo
from shared.request import RequestContext
from shared.tracing.traceparent import trace_id_of

_MOST_IDS = 20
_REFUSALS = (Unauthenticated, SignedTooLongAgo, PermissionDenied, Overloaded)
_REFUSALS_S = 1.0
What = dict[str, object]


@dataclass(frozen=True, slots=True)
class Action:
    """``what``: of a request, what is on record besides who and when."""

    name: str
    what: Callable[[Any], What]


def _ids(of: Callable[[Any], Iterable[str]]) -> Callable[[Any], What]:
    def what(request: Any) -> What:
        ids = list(of(request))
        return {"document_ids": ids[:_MOST_IDS], "num_documents": len(ids)}

    return what


def _fields(*names: str) -> Callable[[Any], What]:
    return lambda request: {name: value for name in names if (value := getattr(request, name))}


def _both(*parts: Callable[[Any], What]) -> Callable[[Any], What]:
    return lambda request: {name: value for part in parts for name, value in part(request).items()}


ACTIONS: Mapping[str, Action] = {
    "Upsert": Action(
        "ingest",
        _both(
            _fields("collection", "re_encode", "dry_run"),
            _ids(lambda request: (document.document_id for document in request.documents)),
        ),
    ),
    "DeleteDocuments": Action(
        "delete", _both(_fields("collection", "all"), _ids(lambda request: request.document_ids))
    ),
    "PutItem": Action("keep", lambda request: {"kind": request.item.kind, "id": request.item.id}),
    "DeleteItem": Action("delete kept", _fields("kind", "id")),
    "GetItem": Action("export kept", _fields("kind", "id")),
    "ListItems": Action("list kept", _fields("kind", "prefix")),
    "Rebuild": Action("rebuild index", _fields("collection")),
    "Refresh": Action("refresh", _fields("collection", "encoding")),
    "AdoptIndex": Action("adopt index", _fields("collection")),
    "PutManifest": Action(
        "import document",
        lambda request: {
            "collection": request.manifest.collection,
            "document_ids": [request.manifest.document_id],
        },
    ),
    "ListManifests": Action("export documents", _fields("collection", "summary")),
    "Get": Action("export chunk", _fields("chunk_id")),
    "CollectGarbage": Action("gc", _fields("grace_s", "dry_run")),
    "Pin": Action("pin", _fields("collection", "document_id", "unpin")),
    "Verify": Action("verify", _fields("repair", "seal")),
    "SuspendVerdict": Action("suspend verdict", _fields("verdict")),
}
"""By RPC."""
ASKED_BY_SERVICES = frozenset({"SuspendVerdict"})
"""On record although services ask for them: nobody outside did."""


@dataclass(slots=True)
class _Refusals:
    """Of one kind: when the last one was recorded, and how many were not since."""

    recorded_s: float = -math.inf
    left_out: int = 0


class Recorder:
    """The audit of one service, for its event loop: records one after the other in a thread of its own."""

    def __init__(self, audit: AuditLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._audit, self._clock = audit, clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="audit")
        self._refusals: dict[str, _Refusals] = {}

    def called(self, method: str, request: Any, ctx: RequestContext, outcome: str = OK) -> Future[None]:
        """``method``: one of ``ACTIONS``. Done once it is on record."""
        action = ACTIONS[method]
        return self._submit(action.name, actor_of(ctx), outcome, **action.what(request))

    def refused(
        self, method: str, peer: str, error: Exception, ctx: RequestContext | None = None
    ) -> Future[None] | None:
        """If ``error`` says that the caller is nobody, may not do that, or wants more than there is room for.
        ``ctx``: of a caller who is known. At most one of each kind a second is on record, with the number of
        those that were left out: nobody fills the disk by asking."""
        if not isinstance(error, _REFUSALS):
            return None
        refusals = self._refusals.setdefault(error.code, _Refusals())
        if (now_s := self._clock()) < refusals.recorded_s + _REFUSALS_S:
            refusals.left_out += 1
            return None
        self._refusals[error.code] = _Refusals(now_s)
        more: What = {"left_out": refusals.left_out} if refusals.left_out else {}
        actor = Actor("", "") if ctx is None else actor_of(ctx)
        return self._submit("call", actor, error.code, method=method, peer=peer, **more)

    def did(self, name: str, actor: Actor, outcome: str = OK, **what: object) -> Future[None]:
        """Records an action of the service itself."""
        return self._submit(name, actor, outcome, **what)

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    def _submit(self, name: str, actor: Actor, outcome: str, **what: object) -> Future[None]:
        return self._thread.submit(self._audit.record, name, actor, outcome, **what)


class Peer(Protocol):
    """A call's gRPC context, as far as this goes."""

    def peer(self) -> str: ...


class CallRecord:
    """Record of one call: if it came in from outside and is one of ``ACTIONS``, or if it is
    refused."""

    def __init__(self, recorder: Recorder | None, method: str, request: Any, peer: Peer | None) -> None:
        """``peer`` None: a service of the installation calls."""
        self._recorder, self._method, self._request, self._peer = recorder, method, request, peer
        self._ctx: RequestContext | None = None
        self._context_of: Callable[[Any], RequestContext] | None = None

    @classmethod
    def of(cls, service: object, method: str, request: Any, peer: Peer | None) -> CallRecord:
        return cls(getattr(service, "recorder", None), method, request, peer)

    def let_in(self, context_of: Callable[[Any], RequestContext]) -> None:
        """Records that the caller is known. Raises like ``context_of``, which is given the request's meta."""
        self._context_of = context_of
        outside = self._peer is not None or self._method in ASKED_BY_SERVICES
        if self._recorder is not None and self._method in ACTIONS and outside:
            self._ctx = context_of(self._request.meta)

    async def failed(self, error: Exception) -> None:
        if isinstance(error, (Unauthenticated, SignedTooLongAgo, PermissionDenied)):
            self._ctx = None
        if self._recorder and self._peer and self._ctx is None:
            peer, ctx = self._peer.peer(), self._caller(error)
            await on_record(self._recorder.refused(self._method, peer, error, ctx))
        await self.ended(error.code if isinstance(error, KvquiltError) else "INTERNAL")

    def _caller(self, error: Exception) -> RequestContext | None:
        """Of a call that was let in, and is not on record otherwise. None: who it is is not known."""
        meta = getattr(self._request, "meta", None)
        if not isinstance(error, Overloaded) or self._context_of is None or meta is None:
            return None
        with contextlib.suppress(KvquiltError):
            return self._context_of(meta)
        return None

    async def ended(self, outcome: str) -> None:
        """The first end counts."""
        ctx, self._ctx = self._ctx, None
        if ctx is not None and self._recorder is not None:
            await on_record(self._recorder.called(self._method, self._request, ctx, outcome))


def actor_of(ctx: RequestContext) -> Actor:
    return Actor(ctx.principal.name, ctx.tenant, ctx.request_id, trace_id_of(ctx.traceparent))


def recorder_of(config: AuditConfig, service: str, auth: AuthConfig) -> Recorder | None:
    """None: no directory is named. Raises ``ConfigError`` where the installation's secret cannot be read."""
    if not config.directory:
        return None
    key, *_ = audit_keys(auth) or (b"",)
    return Recorder(AuditLog(service, config, key))


def audit_keys(auth: AuthConfig) -> tuple[bytes, ...]:
    """By which lines are chained: the current one first. Raises like ``recorder_of``."""
    return tuple(derived(secret, "audit") for secret in secrets_of(auth))


async def on_record(recorded: Future[None] | None) -> None:
    """Waits, and lets it go on if nobody waits any more."""
    if recorded is not None:
        await asyncio.shield(asyncio.wrap_future(recorded))
