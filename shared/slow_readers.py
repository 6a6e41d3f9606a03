"""Cuts callers that do not take what they asked for.

    service ──► proxy of Ray Serve ──► caller
                keeps what the caller has not taken yet, and lets the service go on

A piece of an answer that is not taken within ``limits.stall_s`` ends the call: the service stops working on
it, and what was kept for it is forgotten. Over gRPC the caller is told so once it reads again; over HTTP the
connection is gone. Ray Serve's proxies do not look at it: ``guards`` is what they call before they listen
(`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`), and what they run in front of every HTTP request; there is no
such place for gRPC, whose server is therefore given an interceptor when it is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

import grpc
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.errors import Overloaded
from shared.status import with_code

log = logging.getLogger(__name__)

_STALL_S = "_KVQUILT_STALL_S"
_TRIES = 8


def environment(stall_s: float) -> dict[str, str]:
    """Variables for the processes of Ray Serve's proxies."""
    return {
        _STALL_S: f"{stall_s:g}",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": f"{__name__}.{guards.__name__}",
    }


def guards() -> list[Middleware]:
    """For HTTP; gRPC servers of this process have theirs from now on."""
    stall_s = float(os.environ[_STALL_S])
    _intercept(SlowGrpcReaders(stall_s))
    return [Middleware(SlowHttpReaders, stall_s=stall_s)]


class SlowGrpcReaders(grpc.aio.ServerInterceptor):
    """Of streams of responses."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._endings: set[asyncio.Task[None]] = set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not handler.response_streaming:
            return handler
        kind = "stream_stream" if handler.request_streaming else "unary_stream"
        behaviour = getattr(handler, kind)
        if not inspect.isasyncgenfunction(behaviour):  # nobody asks it for a piece
            return handler
        return handler._replace(**{kind: self._watched(behaviour)})

    def _watched(self, behaviour: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., Any]:
        async def answer(request: Any, context: Any) -> AsyncGenerator[Any, None]:
            """Goes on behind a ``yield`` once the response was written, which a caller's window must
            allow."""
            responses, loop = behaviour(request, _RememberedContext(context)), asyncio.get_running_loop()
            whole = False
            try:
                async for response in responses:
                    timer = loop.call_later(self._stall_s, lambda: self._start(self._cut(responses, context)))
                    try:
                        yield response
                    finally:
                        timer.cancel()
                whole = True
            finally:
                if not whole:
                    self._start(_ended(responses))  # the caller went away while a response was being written

        return answer

    def _start(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _cut(self, responses: AsyncGenerator[Any, None], context: Any) -> None:
        log.info("a caller takes nothing any more")
        await _ended(responses)
        with contextlib.suppress(Exception):  # of the abort itself, or of a caller that is gone
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _reason(self._stall_s))


class _RememberedContext:
    """A call's context that knows its caller when the call is over, too: Serve's proxy asks for it in its
    last words about a request, and gRPC's own context would end the process then."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._peer: str = context.peer()

    def peer(self) -> str:
        return self._peer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class SlowHttpReaders:
    """Starlette's kind of middleware."""

    def __init__(self, app: ASGIApp, stall_s: float) -> None:
        self._app, self._stall_s = app, stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stalled = asyncio.Event()

        async def given(message: Message) -> None:
            if stalled.is_set():
                return
            try:
                async with asyncio.timeout(self._stall_s):
                    await send(message)
            except TimeoutError:
                log.info("a caller takes nothing any more")
                stalled.set()
                _hang_up(send)

        async def heard() -> Message:
            """As if a caller that takes nothing had gone away."""
            received, cut = asyncio.ensure_future(receive()), asyncio.ensure_future(stalled.wait())
            try:
                await asyncio.wait((received, cut), return_when=asyncio.FIRST_COMPLETED)
                return received.result() if received.done() else {"type": "http.disconnect"}
            finally:
                received.cancel()
                cut.cancel()

        await self._app(scope, heard, given)


def _reason(stall_s: float) -> str:
    taken = f"the caller took nothing of the answer for {stall_s:g} s (limits.stall_s)"
    return with_code(Overloaded(f"{taken}; read as fast as it comes, or ask for less"))


async def _ended(responses: AsyncGenerator[Any, None]) -> None:
    """Ends the work behind them. Serve's proxy tells a replica so only where it is cancelled while it waits
    for the replica: closed anywhere else, it lets the replica work on."""
    for _ in range(_TRIES):
        following = asyncio.ensure_future(anext(responses))
        await asyncio.sleep(0)
        following.cancel()
        told: Any = await asyncio.gather(following, return_exceptions=True)
        if isinstance(told[0], BaseException):
            break
    with contextlib.suppress(Exception):
        await responses.aclose()


def _hang_up(send: Any) -> None:
    """Uvicorn would close a connection once what it holds for it was taken."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()


def _intercept(interceptor: grpc.aio.ServerInterceptor) -> None:
    from grpc.aio import _server

    made: Any = _server.Server.__init__

    def made_with_it(self: Any, *given: Any, **named: Any) -> None:
        made(self, *given, **named | {"interceptors": (*(named.get("interceptors") or ()), interceptor)})

    setattr(_server.Server, "__init__", made_with_it)  # noqa: B010
