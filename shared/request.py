"""The context that travels with every request through every service: who asks, under which name, until
when."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from shared.errors import DeadlineExceeded, InvalidRequest

DEFAULT_TENANT = "default"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_REQUEST_ID = re.compile(r"[!-~]{0,128}")


def check_name(field: str, value: str) -> str:
    """Tenant and collection names become parts of paths and expressions, so only plain ones pass.

    Raises:
        InvalidRequest: names ``field`` and the rule.
    """
    if not _NAME.fullmatch(value):
        raise InvalidRequest(
            f"{field}: {value[:80]!r} is not a name (1 to 64 letters, digits, '-', '_' or '.', "
            "beginning with a letter or digit)"
        )
    return value


@dataclass(frozen=True, slots=True)
class RequestContext:
    """``deadline_s`` is an instant of ``time.monotonic()`` of this process."""

    request_id: str
    tenant: str
    deadline_s: float

    @classmethod
    def create(
        cls, request_id: str = "", tenant: str = "", deadline_ms: int = 0, default_deadline_ms: int = 120_000
    ) -> RequestContext:
        """Fills in what the caller left out.

        Raises:
            InvalidRequest: the tenant is not a plain name, or the request id not one word: it stands in logs.
        """
        if not _REQUEST_ID.fullmatch(request_id):
            raise InvalidRequest(
                f"meta.request_id: {request_id[:128]!r} is no word of at most 128 visible ASCII characters"
            )
        return cls(
            request_id=request_id or uuid.uuid4().hex,
            tenant=check_name("meta.tenant", tenant or DEFAULT_TENANT),
            deadline_s=time.monotonic() + (deadline_ms or default_deadline_ms) / 1000,
        )

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
