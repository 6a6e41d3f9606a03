"""Reads the name of a client's certificate from what the proxy that ended TLS says of it (Envoy's
``x-forwarded-client-cert``)."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PAIR = re.compile(r'\s*([A-Za-z]+)=("(?:[^"\\]|\\.)*"|[^;,"]*)\s*(;|,|$)')
_CN = re.compile(r"(?:^|(?<!\\),)\s*CN=((?:[^,\\]|\\.)+)")  # RFC 2253, as Envoy writes subjects
_ESCAPED = re.compile(r"\\(.)")
_MOST_CHARS = 16 << 10


def certificate_names(header: str) -> list[str]:
    """``URI=…``, ``DNS=…`` and ``CN=…`` of the certificate that the nearest proxy saw: the last element,
    since each appends its own. Empty: the header says none, or is none."""
    try:
        *_, last = _elements(header[: _MOST_CHARS + 1])
    except ValueError:
        return []
    names = [f"{kind}={value}" for kind, value in last if kind in ("URI", "DNS") and value]
    subjects = [value for kind, value in last if kind == "Subject"]
    common = [_CN.findall(subject) for subject in subjects]
    # of several in one subject, nobody knows which is meant
    return names + ["CN=" + _ESCAPED.sub(r"\1", found[0]) for found in common if len(found) == 1]


def _elements(header: str) -> Iterator[list[tuple[str, str]]]:
    """
    Raises:
        ValueError: not in this form.
    """
    if len(header) > _MOST_CHARS:
        raise ValueError("too long")
    at, pairs = 0, list[tuple[str, str]]()
    while at < len(header):
        found = _PAIR.match(header, at)
        if found is None:
            raise ValueError("not a list of pairs")
        pairs.append((found[1], _unquoted(found[2])))
        at = found.end()
        if found[3] == ",":
            yield pairs
            pairs = []
    yield pairs


def _unquoted(value: str) -> str:
    """Escapes are the subject's own (RFC 2253): read away here, they would let one name pass for two."""
    return value[1:-1] if value.startswith('"') else value
