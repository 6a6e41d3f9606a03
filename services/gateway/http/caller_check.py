"""Lets in who may call, before anything of a request is read."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.http.errors import response_to
from shared.metrics.node import PATH as METRICS_PATH
from shared.principals.callers import OPERATOR, Call, Caller, Callers

_CALLER = "kvquilt.caller"
_METHOD, _METHOD_AT = "Answer", {METRICS_PATH: "Status"}
"""Of the RPC whose callers may use HTTP: what it serves is for those who may ask, but how all is is for those
who may know."""


class CallerCheck:
    """Answers everybody else itself."""

    def __init__(self, app: ASGIApp, callers: Callers | None) -> None:
        self._app, self._callers = app, callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = _METHOD_AT.get(scope["path"], _METHOD)
        try:
            if self._callers is not None:
                scope[_CALLER] = await self._callers.of_call(method, _call(scope))
        except Exception as error:  # Starlette would answer in plain text
            await response_to(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def caller_of(scope: Scope) -> Caller:
    """Who was let in."""
    caller: Caller = scope.get(_CALLER, OPERATOR)
    return caller


def _call(scope: Scope) -> Call:
    headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
    return Call(headers, str(scope["client"][0]) if scope.get("client") else "")
