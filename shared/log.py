"""Structured logs: one line per record, with the request it belongs to.

``configure`` is called once per process, in a service's ``app.py``. ``bind`` is called where a request enters
(``shared.rpc``); every record logged from there on in the same task carries its request id, its tenant and,
of a request that has a trace, the trace's id.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TextIO

from shared.errors import KvquiltError
from shared.request import RequestContext
from shared.tracing.traceparent import trace_id_of

LogFormat = Literal["json", "text"]
Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

_request: ContextVar[Mapping[str, str]] = ContextVar("kvquilt_request", default=MappingProxyType({}))
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# What a caller says must neither begin a line nor steer a terminal.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}
_QUOTED = re.compile(r"""(?<!\w)'(?:[^'\\]|\\.)*'(?!\w)|"(?:[^"\\]|\\.)*"|“[^”]*”""")
_PLACE = re.compile(r'\s+File "')
_NOISY = (
    "mcp",
    "httpx",
    "httpcore",
    "urllib3",
    "pymilvus",
    "milvus_lite",
    "sentence_transformers",
    "transformers",
    "filelock",
    "asyncio",
)


@dataclass(frozen=True, slots=True)
class LogConfig:
    """``json``: one object per line, for machines; ``text``: the same for eyes."""

    level: Level = "INFO"
    format: LogFormat = "text"


def configure(service: str, config: LogConfig, stream: TextIO | None = None) -> None:
    """Sends every logger of this process to ``stream`` (stderr). Calling it again replaces what the first
    call set up."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(service) if config.format == "json" else TextFormatter(service))
    _quiet_serve()
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h.formatter, _Formatter)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(config.level)
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def unquoted(text: str) -> str:
    """Without what stands in quotation marks: what an error quotes is what a caller or a document said."""
    return _QUOTED.sub("'…'", text)


def bind(ctx: RequestContext) -> None:
    """From here on the records of this task belong to ``ctx``."""
    traced = {"trace_id": trace_id} if (trace_id := trace_id_of(ctx.traceparent)) else {}
    _request.set({"request_id": ctx.request_id, "tenant": ctx.tenant, **traced})


class _Formatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def formatException(self, ei: Any) -> str:
        """Places as they are, messages and code without what they quote."""
        lines = super().formatException(ei).splitlines()
        return "\n".join(line if _PLACE.match(line) else unquoted(line) for line in lines)


class _WithoutDetail(logging.Filter):
    """Of what Ray Serve says about a request that failed, leaves the error's code: we have told it already,
    and its detail may quote the caller."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, KvquiltError):
            record.msg, record.args = f"{record.getMessage()} {error.code}", ()
            record.exc_info = record.exc_text = None
        return True


def _quiet_serve() -> None:
    serve = logging.getLogger("ray.serve")
    if not any(isinstance(known, _WithoutDetail) for known in serve.filters):
        serve.addFilter(_WithoutDetail())


class JsonFormatter(_Formatter):
    """``{"time", "level", "service", "logger", "message", ["request_id", "tenant", "trace_id", "error"],
    **extra}``"""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
            **_request.get(),
            **_extra(record),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


class TextFormatter(_Formatter):
    """The same for eyes: time, level, service, message, then ``key=value``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {**_request.get(), **_extra(record)}
        tail = "".join(f" {key}={value}" for key, value in fields.items())
        line = f"{_utc(record.created)} {record.levelname:7} {self._service}: {record.getMessage()}{tail}"
        line = line.translate(_CONTROLS)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """Returns what the caller passed by ``extra={...}``."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _utc(created: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created)) + f".{int(created % 1 * 1000):03d}Z"
