"""The context that travels with every request through every service: who asks, under which name, until
when."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from shared.admission.priority import HIGHEST, LOWEST
from shared.errors import DeadlineExceeded, InvalidRequest
from shared.principals.names import check_plain
from shared.principals.principal import Principal
from shared.principals.signing import Signer
from shared.tracing.traceparent import read_traceparent

DEFAULT_TENANT = "default"
MAX_STREAM_INTERVAL_MS = 10_000
READERS_STREAM_INTERVAL_MS = 50
"""For people who read along: no eye sees the difference."""
_REQUEST_ID = re.compile(r"[!-~]{0,128}")


def check_name(field: str, value: str) -> str:
    """Tenant and collection names become parts of paths and expressions, so only plain ones pass.

    Raises:
        InvalidRequest: names ``field`` and the rule.
    """
    try:
        return check_plain(field, value)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


@dataclass(frozen=True, slots=True)
class RequestContext:
    """``deadline_s`` is an instant of ``time.monotonic()`` of this process. ``signer`` tells the services
    that are called on the way who asked; None: they are told the tenant alone. ``traceparent``: the span that
    what is done now stands below (``shared.tracing``); empty: nobody asked for a trace. ``outside``: what is
    asked is what a caller says, and no service said it for him. ``priority``: among what waits of the same
    tenant; lower goes earlier (``shared.admission.priority``). ``stream_interval_ms``: how long events of a
    stream are gathered into one message; 0: not at all."""

    request_id: str
    principal: Principal
    deadline_s: float
    signer: Signer | None = field(default=None, repr=False, compare=False)
    traceparent: str = ""
    outside: bool = field(default=False, compare=False)
    priority: int = 0
    stream_interval_ms: int = 0

    @classmethod
    def create(
        cls,
        request_id: str = "",
        tenant: str = "",
        deadline_ms: int = 0,
        default_deadline_ms: int = 120_000,
        principal: Principal | None = None,
        signer: Signer | None = None,
        traceparent: str = "",
        priority: int = 0,
        stream_interval_ms: int = 0,
    ) -> RequestContext:
        """Fills in what the caller left out.

        principal: None: the operator, at work for ``tenant``, which says nothing otherwise.

        Raises:
            InvalidRequest: the tenant is not a plain name, or the request id not one word: it stands in logs;
            the priority or the stream's interval is out of bounds.
        """
        if not HIGHEST <= priority <= LOWEST:
            raise InvalidRequest(
                f"meta.priority: must be from {HIGHEST} (goes first) to {LOWEST}, got {priority}"
            )
        if stream_interval_ms > MAX_STREAM_INTERVAL_MS:
            raise InvalidRequest(
                f"meta.stream_interval_ms: must be at most {MAX_STREAM_INTERVAL_MS}, got {stream_interval_ms}"
            )
        if not _REQUEST_ID.fullmatch(request_id):
            raise InvalidRequest(
                f"meta.request_id: {request_id[:128]!r} is no word of at most 128 visible ASCII characters"
            )
        return cls(
            request_id=request_id or uuid.uuid4().hex,
            principal=principal or Principal.operator(check_name("meta.tenant", tenant or DEFAULT_TENANT)),
            deadline_s=time.monotonic() + (deadline_ms or default_deadline_ms) / 1000,
            signer=signer,
            traceparent=read_traceparent(traceparent),
            priority=priority,
            stream_interval_ms=stream_interval_ms,
        )

    @property
    def tenant(self) -> str:
        """Whose data this is about."""
        return self.principal.tenant

    @property
    def signed(self) -> str:
        """The principal as services tell each other of it, until the deadline; empty without a signer."""
        return self.signer.sign(self.principal, self.remaining_s) if self.signer is not None else ""

    def lasting(self, seconds: float) -> RequestContext:
        """The same with another deadline, so long from now."""
        return replace(self, deadline_s=time.monotonic() + seconds)

    @property
    def remaining_s(self) -> float:
        return max(0.0, self.deadline_s - time.monotonic())

    def check_deadline(self, doing: str) -> None:
        """
        Raises:
            DeadlineExceeded: the time is over; ``doing`` says at what.
        """
        if self.remaining_s <= 0:
            raise _late(doing)

    @asynccontextmanager
    async def until_deadline(self, doing: str) -> AsyncGenerator[None, None]:
        """Gives up what is going on in it when the deadline passes.

        Raises:
            DeadlineExceeded: as ``check_deadline``.
        """
        self.check_deadline(doing)
        try:
            async with asyncio.timeout(self.remaining_s):
                yield
        except TimeoutError:
            raise _late(doing) from None


def _late(doing: str) -> DeadlineExceeded:
    return DeadlineExceeded(f"deadline passed while {doing}; ask for less or set meta.deadline_ms higher")
