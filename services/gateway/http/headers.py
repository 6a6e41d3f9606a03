"""Reads who asks, and until when, from a request's headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.errors import InvalidRequest
from shared.principals.callers import OPERATOR, Caller
from shared.request import MAX_STREAM_INTERVAL_MS, RequestContext
from shared.tracing.traceparent import HEADER as TRACEPARENT_HEADER

TENANT_HEADER, REQUEST_ID_HEADER = "x-kvquilt-tenant", "x-request-id"
RETRY_HEADER = "x-stainless-retry-count"
"""By which OpenAI's clients say how often they have sent this request before."""


@dataclass(frozen=True, slots=True)
class _Meta:
    """``RequestMeta`` of what HTTP asks."""

    request_id: str
    tenant: str
    deadline_ms: int
    priority: int
    stream_interval_ms: int
    principal: str = ""
    traceparent: str = ""


def context_of(
    headers: Mapping[str, str],
    caller: Caller = OPERATOR,
    tenant: str = "",
    deadline_ms: int = 0,
    priority: int = 0,
    stream_interval_ms: int = MAX_STREAM_INTERVAL_MS,
) -> RequestContext:
    """``tenant``: that the body names; 0: the usual deadline. ``stream_interval_ms``: of an answer that is
    streamed; of one that is sent whole it may as well come together.

    Raises:
        InvalidRequest: the tenant is no name, or the header names another one; there is no such priority.
    """
    header = headers.get(TENANT_HEADER, "")
    if header and tenant and header != tenant:
        raise InvalidRequest(f"tenant: is {tenant!r}, but {header!r} in the header {TENANT_HEADER}")
    return caller.context(
        _Meta(
            headers.get(REQUEST_ID_HEADER, ""),
            tenant or header,
            deadline_ms,
            priority,
            stream_interval_ms,
            traceparent=headers.get(TRACEPARENT_HEADER, ""),
        )
    )


def is_retry(headers: Mapping[str, str]) -> bool:
    """The client may have sent the same before, and not heard what came of it."""
    return headers.get(RETRY_HEADER, "0") not in ("", "0")
