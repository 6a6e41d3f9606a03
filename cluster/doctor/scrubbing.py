"""Takes out of settings and logs what nobody else should read: secrets, and whatever may quote a document or
a question.

A log's lines are kept only where their form is known: those of our services, without what stands in quotation
marks in them, and the places of tracebacks, without messages and code. All else is counted, and left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from shared.log import unquoted

REMOVED = "[removed]"
_SECRET_NAME = re.compile(r"token|secret|passw|key|credential|authorization|cookie|headers", re.IGNORECASE)
_SECRET_WORD = r"[\w-]*(?:token|secret|passw\w*|api[_-]?key|credential)[\w-]*"
_LEAST_SECRET_LEN = 4
_SPOKEN = ("system", "instruction", "text", "stop")
"""Settings that say something in the operator's words."""
_KEPT_FIELDS = ("time", "level", "service", "logger", "request_id", "tenant", "trace_id")
_LINE = re.compile(r"(?:\([^)]*\) )?\d{4}-\d\d-\d\dT[\d:.]+Z [A-Z]+ +\w+: ")
_PLACE = re.compile(r'\s+File "[^"]*", line \d+, in \w+')
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Warning|Exit|Interrupt|NotFound|Unavailable)\b")
_SUBSTITUTIONS = (
    (re.compile(r"(?i)\b(bearer|basic)\s+\S+"), rf"\1 {REMOVED}"),
    (re.compile(rf"(?i)\b({_SECRET_WORD})\s*[=:]\s*\S+"), rf"\1={REMOVED}"),
    (re.compile(r"\b[a-z][a-z0-9+.-]*://\S+"), "[url]"),
)  # fmt: skip


class Scrubber:
    """``secrets``: what must not be read anywhere, whatever it stands in."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {secret for secret in secrets if len(secret) >= _LEAST_SECRET_LEN}
        self._secrets = sorted(known, key=len, reverse=True)

    def line(self, text: str) -> str:
        """Returns what an operator may show of one line of ours."""
        for secret in self._secrets:
            text = text.replace(secret, REMOVED)
        for pattern, instead in _SUBSTITUTIONS:
            text = pattern.sub(instead, text)
        return unquoted(text)

    def log(self, lines: Iterable[str]) -> Iterator[str]:
        left_out = 0
        for line in lines:
            known = self._known(line.rstrip("\n"))
            if known is None:
                left_out += 1
                continue
            if left_out:
                yield f"[{left_out} lines left out]"
                left_out = 0
            yield known
        if left_out:
            yield f"[{left_out} lines left out]"

    def values(self, values: Any) -> Any:
        """Numbers as they are, texts without secrets; of mappings and lists all."""
        if isinstance(values, Mapping):
            return {key: self.values(value) for key, value in values.items()}
        if isinstance(values, (list, tuple)):
            return [self.values(value) for value in values]
        return self.line(values) if isinstance(values, str) else values

    def settings(self, values: Any, name: str = "") -> Any:
        """Secrets, and what the operator said in words, are told by nothing but that they are there."""
        if isinstance(values, Mapping):
            return {key: self.settings(value, str(key)) for key, value in values.items()}
        if isinstance(values, (list, tuple)):
            return [self.settings(value, name) for value in values]
        if not isinstance(values, str) or not values:
            return values
        if _SECRET_NAME.search(name):
            return REMOVED
        if name in _SPOKEN:
            return f"[{len(values)} characters]"
        for secret in self._secrets:
            values = values.replace(secret, REMOVED)
        return _without_userinfo(values)

    def _known(self, line: str) -> str | None:
        if line.startswith("{"):
            return self._record(line)
        if _LINE.match(line):
            return self.line(line)
        if place := _PLACE.match(line):
            return place[0]
        return raised[0] if (raised := _RAISED.match(line)) else None

    def _record(self, line: str) -> str | None:
        """One of ``log.format: json``."""
        try:
            fields = json.loads(line)
        except ValueError:
            return None
        if not isinstance(fields, dict) or "message" not in fields:
            return None
        kept = {name: self.line(str(fields[name])) for name in _KEPT_FIELDS if name in fields}
        kept["message"] = self.line(str(fields["message"]))
        numbers = {k: v for k, v in fields.items() if isinstance(v, (int, float)) and k not in kept}
        if "error" in fields:
            kept["error"] = "\n".join(self.log(str(fields["error"]).splitlines()))
        return json.dumps(kept | numbers, ensure_ascii=False)


def secrets_of(environ: Mapping[str, str]) -> list[str]:
    """Values of variables whose names say that they are secret."""
    return [value for name, value in environ.items() if _SECRET_NAME.search(name)]


def secrets_in(settings: Any, name: str = "") -> Iterator[str]:
    """Values of settings whose names say that they are secret."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            yield from secrets_in(value, str(key))
    elif isinstance(settings, str) and settings and _SECRET_NAME.search(name):
        yield settings


def _without_userinfo(text: str) -> str:
    if "://" not in text:
        return text
    parts = urlsplit(text)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
