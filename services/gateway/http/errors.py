"""Errors as OpenAI's clients read them: ``{"error": {"message", "type", "param", "code"}}`` and a status.

Details name fields as gRPC does; here they get the names that they have over HTTP.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from shared.errors import (
    ContextTooLong,
    InternalError,
    InvalidRequest,
    KvquiltError,
    NotFound,
    Unauthenticated,
)
from shared.log import unquoted
from shared.status import http_status_of

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1
_RENAMED = {
    "retrieval.k": "top_k",
    "recompute.ratio": "ratio",
    "retrieval": "top_k",
    "reuse": "mode",
    "meta.request_id": "x-request-id",
    "meta.tenant": "tenant",
    "meta.deadline_ms": "deadline_ms",
    "meta.priority": "priority",
    "meta.stream_interval_ms": "stream_interval_ms",
}
NO_NAMES: Mapping[str, str] = {}
_DOTTED = re.compile("|".join(re.escape(name) for name in _RENAMED if "." in name))
_FIELD = re.compile(r"([\w.-]+(?:\[\d+\][\w.]*)*): ")


class ModelNotServed(NotFound):
    """It is asked for by another name than the one that is served."""


_CODES: dict[type[KvquiltError], str] = {  # OpenAI's, which clients look for
    ContextTooLong: "context_length_exceeded",
    ModelNotServed: "model_not_found",
    Unauthenticated: "invalid_api_key",
}


class ApiError(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ApiErrorBody(BaseModel):
    error: ApiError


API_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ApiErrorBody}, "5XX": {"model": ApiErrorBody}}
"""What every route may answer, for ``/openapi.json``."""


def body_of(error: KvquiltError, names: Mapping[str, str] = NO_NAMES) -> ApiErrorBody:
    """Returns what a caller is told of ``error``. ``names``: of fields in its request, besides those that
    have the same in all."""
    detail = _DOTTED.sub(lambda match: _RENAMED[match[0]], error.detail).removeprefix("sampling.")
    param = None
    if isinstance(error, (InvalidRequest, ModelNotServed)) and (field := _FIELD.match(detail)):
        param = names.get(field[1]) or _RENAMED.get(field[1], field[1])
        detail = param + detail[field.end(1) :]
    code = _CODES.get(type(error), error.code.lower())
    return _body(http_status_of(type(error)), detail, code, param)


def response_to(error: Exception, names: Mapping[str, str] = NO_NAMES) -> Response:
    """The answer to a request that failed with ``error``, which is logged. ``names``: see ``body_of``."""
    known = told(error)
    status = http_status_of(type(known))
    headers = {"x-should-retry": str(known.retryable).lower()}
    if known.retryable:
        headers["retry-after"] = str(max(RETRY_AFTER_S, math.ceil(known.retry_after_s or 0)))
    if isinstance(known, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    return _response(status, body_of(known, names), headers)


def told(error: Exception) -> KvquiltError:
    """Logs ``error`` and returns what may be told of it."""
    if isinstance(error, KvquiltError):
        log.info("failed: %s: %s", error.code, unquoted(error.detail))
        return error
    log.error("unexpected error", exc_info=error)
    return InternalError("failed unexpectedly; the service's log has the reason")


async def on_error(_: Request, error: Exception) -> Response:
    return response_to(error)


async def on_invalid(_: Request, error: Exception) -> Response:
    """Of a body that does not fit the schema: the first thing that is wrong."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return response_to(InvalidRequest(f"the body is not JSON: {first['ctx']['error']}"))
    where = _name(first["loc"])
    if not where and first["type"] == "model_attributes_type":
        return response_to(InvalidRequest("the body must be a JSON object (content-type: application/json)"))
    wrong = "is required" if first["type"] == "missing" else str(first["msg"]).removeprefix("Value error, ")
    return response_to(InvalidRequest(f"{where or 'the body'}: {wrong}"))


async def on_http_error(request: Request, error: Exception) -> Response:
    """Of what no route is responsible for: an unknown path, a body that is too large."""
    assert isinstance(error, HTTPException)
    messages = {
        404: f"{request.method} {request.url.path} is not served here; docs/http.md lists what is",
        405: f"{request.method} is not possible on {request.url.path}",
    }
    message = messages.get(error.status_code, str(error.detail))
    code = HTTPStatus(error.status_code).name.lower()
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(sorted(_methods(request)))
    return _response(error.status_code, _body(error.status_code, message, code), headers)


def _methods(request: Request) -> set[str]:
    """All that are possible on its path: Starlette names those of the first route alone."""
    routes = [one for one in request.app.routes if one.matches(request.scope)[0] is not Match.NONE]
    return {method for route in routes for method in getattr(route, "methods", None) or ()}


def _body(status: int, message: str, code: str, param: str | None = None) -> ApiErrorBody:
    kind = "invalid_request_error" if status < 500 else "server_error"
    kind = "rate_limit_error" if status == HTTPStatus.TOO_MANY_REQUESTS else kind
    return ApiErrorBody(error=ApiError(message=_plain(message), type=kind, param=param, code=code))


def _plain(text: str) -> str:
    """Without halves of characters, which a caller may have named a parameter by."""
    return text.encode(errors="replace").decode()


def _response(status: int, body: ApiErrorBody, headers: Any) -> Response:
    return JSONResponse(body.model_dump(), status, headers=dict(headers))


def _name(loc: Sequence[Any]) -> str:
    """``("body", "messages", 0, "content", "str")`` as ``messages[0].content``: what comes behind a field of
    several types is the type's name."""
    name = ""
    for part in loc[1:]:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "float", "int", "bool"):
            name += f".{part}" if name else part
    return name
