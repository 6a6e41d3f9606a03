"""Structured logs: one line per record, with the request it belongs to.

``configure`` is called once per process, in a service's ``app.py``. ``bind`` is called where a request enters
(``shared.rpc``); every record logged from there on in the same task carries its request id and tenant.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TextIO

from shared.request import RequestContext

LogFormat = Literal["json", "text"]
Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

_request: ContextVar[tuple[str, str]] = ContextVar("kvquilt_request", default=("", ""))
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# What a caller says must neither begin a line nor steer a terminal.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}
_NOISY = (
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
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h.formatter, _Formatter)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(config.level)
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def bind(ctx: RequestContext) -> None:
    """From here on the records of this task belong to ``ctx``."""
    _request.set((ctx.request_id, ctx.tenant))


class _Formatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service


class JsonFormatter(_Formatter):
    """``{"time", "level", "service", "logger", "message", ["request_id", "tenant", "error"], **extra}``"""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
            **_request_fields(),
            **_extra(record),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


class TextFormatter(_Formatter):
    """The same for eyes: time, level, service, message, then ``key=value``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {**_request_fields(), **_extra(record)}
        tail = "".join(f" {key}={value}" for key, value in fields.items())
        line = f"{_utc(record.created)} {record.levelname:7} {self._service}: {record.getMessage()}{tail}"
        line = line.translate(_CONTROLS)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _request_fields() -> dict[str, str]:
    request_id, tenant = _request.get()
    return {"request_id": request_id, "tenant": tenant} if request_id else {}


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """Returns what the caller passed by ``extra={...}``."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _utc(created: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created)) + f".{int(created % 1 * 1000):03d}Z"
