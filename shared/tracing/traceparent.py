"""Reads and makes the trace context of W3C that travels with a request: ``00-TRACE_ID-SPAN_ID-FLAGS``."""

from __future__ import annotations

import re
import secrets

HEADER = "traceparent"
_FORM = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


def read_traceparent(text: str) -> str:
    """Returns what was sent, in the form of this version; empty if it is none. As W3C wants it, a broken one
    counts as none: it is no reason to refuse a request."""
    found = _FORM.fullmatch(text.strip())
    if found is None or (found[1] == "00" and found[5]):
        return ""
    return f"00-{found[2]}-{found[3]}-{int(found[4], 16) & _SAMPLED:02x}"


def new_traceparent() -> str:
    """Returns that of a caller who wants to have a request traced."""
    return traceparent_of(secrets.randbits(128) or 1, secrets.randbits(64) or 1)


def traceparent_of(trace_id: int, span_id: int) -> str:
    """Returns that of a span which is recorded."""
    return f"00-{trace_id:032x}-{span_id:016x}-01"


def is_sampled(traceparent: str) -> bool:
    """Says whether spans are wanted of it. ``traceparent``: as read, or empty."""
    return traceparent.endswith("1")


def trace_id_of(traceparent: str) -> str:
    """Returns its 32 hex digits; empty where there is none."""
    return traceparent[3:35]


def span_id_of(traceparent: str) -> str:
    return traceparent[36:52]
