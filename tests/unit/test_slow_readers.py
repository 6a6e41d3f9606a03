"""HTTP callers that take nothing are treated as if they had gone away."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from shared import slow_readers
from shared.slow_readers import SlowHttpReaders
from tests.virtual_time import run_virtually

PIECE: Message = {"type": "http.response.body", "body": b"x", "more_body": True}


class Cycle:
    """A connection as uvicorn has it. ``takes``: how many pieces before it takes nothing."""

    def __init__(self, takes: int) -> None:
        self.left, self.aborted, self.transport = takes, False, self

    async def send(self, message: Message) -> None:
        if not self.left:
            await asyncio.Event().wait()
        self.left -= 1

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError("nobody speaks")

    def abort(self) -> None:
        self.aborted = True


async def until_told_to_stop(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers like Serve's proxy: until the caller goes away."""
    gone = asyncio.ensure_future(receive())
    while not gone.done():
        await send(PIECE)
        await asyncio.sleep(1)
    assert gone.result() == {"type": "http.disconnect"}


def test_a_caller_that_takes_nothing_for_too_long_has_gone_away() -> None:
    async def run() -> Cycle:
        cycle = Cycle(takes=3)
        await SlowHttpReaders(until_told_to_stop, 30)({"type": "http"}, cycle.receive, cycle.send)
        assert asyncio.get_running_loop().time() == pytest.approx(34)
        return cycle

    assert run_virtually(run()).aborted


def test_what_a_caller_says_reaches_the_application() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert await receive() == {"type": "http.request", "body": b"?"}
        await send(PIECE)

    async def run() -> Cycle:
        cycle = Cycle(takes=1)

        async def receive() -> Message:
            return {"type": "http.request", "body": b"?"}

        await SlowHttpReaders(app, 30)({"type": "http"}, receive, cycle.send)
        return cycle

    cycle = run_virtually(run())
    assert (cycle.left, cycle.aborted) == (0, False)


def test_proxies_are_told_by_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slow_readers.environment(45).items():
        monkeypatch.setitem(os.environ, name, value)
    given: list[Any] = []
    monkeypatch.setattr(slow_readers, "_intercept", given.append)
    (middleware,) = slow_readers.guards()
    assert middleware.cls is SlowHttpReaders
    assert middleware.kwargs == {"stall_s": 45.0}
    assert [one._stall_s for one in given] == [45.0]
    path = os.environ["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"]
    assert path == "shared.slow_readers.guards"


def test_a_call_that_is_over_still_knows_its_caller() -> None:
    """gRPC's own context ends the process then."""

    class Context:
        over = False

        def peer(self) -> str:
            assert not self.over
            return "ipv4:127.0.0.1:1"

        def code(self) -> int:
            return 0

    context = Context()
    remembered = slow_readers._RememberedContext(context)
    context.over = True
    assert (remembered.peer(), remembered.code()) == ("ipv4:127.0.0.1:1", 0)
