"""Lets in who may call, before anything of a request is read."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.http.errors import response_to
from shared.audited import Recorder, on_record
from shared.metrics.node import PATH as METRICS_PATH
from shared.principals.callers import OPERATOR, Call, Caller, Callers
from shared.request import RequestContext

_CALLER = "kvquilt.caller"
_METHOD, _METHOD_AT = (
    "Answer",
    {
        METRICS_PATH: "Status",
        "/v1/status": "Status",
        "/v1/tiers": "Stats",
        "/health": "Health",
        "/v1/embeddings": "Embed",
        "/v1/feedback": "Feedback",
    },
)
"""Of the RPC whose callers may use HTTP: what it serves is for those who may ask, but how all is is for those
who may know, and that it lives for everybody."""
_KEPT = re.compile(r"/v1/(files|vector_stores)(/.*)?", re.DOTALL)
_CONSOLE = re.compile(r"/console(/.*)?", re.DOTALL)
"""Files that are the same for everybody; what they show is asked for with the key of who looks."""
_SEARCH = re.compile(r"/v1/vector_stores/[^/]+/search", re.DOTALL)
_OF_KEPT = {"GET": "ListDocuments", "HEAD": "ListDocuments", "DELETE": "DeleteDocuments"}


class CallerCheck:
    """Answers everybody else itself."""

    def __init__(self, app: ASGIApp, callers: Callers | None, recorder: Recorder | None = None) -> None:
        self._app, self._callers, self._recorder = app, callers, recorder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            if self._callers is not None:
                scope[_CALLER] = await self._callers.of_call(_method(scope), _call(scope))
        except Exception as error:  # Starlette would answer in plain text
            await refusal_on_record(self._recorder, scope, error)
            await response_to(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def caller_of(scope: Scope) -> Caller:
    """Returns the caller that was let in."""
    caller: Caller = scope.get(_CALLER, OPERATOR)
    return caller


async def refusal_on_record(
    recorder: Recorder | None, scope: Scope, error: Exception, ctx: RequestContext | None = None
) -> None:
    """As of the RPC, if ``error`` is a refusal. ``ctx``: of a caller who is known."""
    if recorder is not None:
        await on_record(recorder.refused(_method(scope), f"http:{_peer(scope)}", error, ctx))


def _method(scope: Scope) -> str:
    path = scope["path"]
    if _CONSOLE.fullmatch(path) and scope["method"] in ("GET", "HEAD"):
        return "Health"
    if _SEARCH.fullmatch(path) and scope["method"] == "POST":
        return "Search"
    if _KEPT.fullmatch(path):
        return _OF_KEPT.get(scope["method"], "Upsert")
    return _METHOD_AT.get(path, _METHOD)


def _call(scope: Scope) -> Call:
    headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
    return Call(headers, _peer(scope))


def _peer(scope: Scope) -> str:
    return str(scope["client"][0]) if scope.get("client") else ""
