"""Refuses bodies that are too large while they are read, in the form of all errors (Starlette's own limit
answers in plain text)."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """``max_bytes``: of a request's body; ``others``: of those to these paths."""

    def __init__(self, app: ASGIApp, max_bytes: int, others: Mapping[str, int] | None = None) -> None:
        self._app = app
        self._max_bytes, self._others = max_bytes, others or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        most = self._others.get(scope.get("path", ""), self._max_bytes)
        read = 0

        async def counted() -> Message:
            nonlocal read
            if _declared_bytes(scope) > most:
                raise HTTPException(413, f"the body is larger than {most} bytes")
            message = await receive()
            read += len(message.get("body", b""))
            if read > most:
                raise HTTPException(413, f"the body is larger than {most} bytes")
            return message

        await self._app(scope, counted, send)


def _declared_bytes(scope: Scope) -> int:
    """By the header; 0: it says nothing."""
    for name, value in scope.get("headers", ()):
        if name.lower() == b"content-length" and value.isdigit():
            return int(value)
    return 0
