"""Callers who ask a running stack for much and take nothing of it: they are cut, what worked for them ends,
the proxy forgets what it kept for them, and others are answered meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from protos.kvquilt.v1 import common_pb2, rag_pb2, rag_pb2_grpc
from shared.clients.grpc_transport import CHANNEL_OPTIONS, error_of
from shared.errors import Overloaded
from tests.e2e.conftest import COLLECTION, STALL_S
from tests.e2e.stack import Stack
from tests.e2e.test_attacks import resident_bytes
from tests.e2e.test_http import ask, generator_rests, text_of
from tests.e2e.test_metrics import scraped, total

pytestmark = pytest.mark.e2e
QUESTION = "Which day is market day in Tambach?"
BRANCHES, MOST_TOKENS = 8, 1500
MAY_KEEP_BYTES = 48 << 20
WAIT_S = 180.0
CUT = "kvquilt_answers_total", {"code": "CANCELLED"}
ABORTED = "kvquilt_request_success_total", {"finished_reason": "abort"}


@asynccontextmanager
async def taking_nothing_by_grpc(stack: Stack) -> AsyncIterator[Any]:
    """A call whose answer has begun."""
    sampling = common_pb2.Sampling(
        max_tokens=MOST_TOKENS, n=BRANCHES, temperature=1.0, ignore_eos=True, top_logprobs=64
    )
    request = rag_pb2.AnswerRequest(
        collection=COLLECTION,
        questions=[QUESTION],
        sampling=sampling,
        retrieval=rag_pb2.RetrievalOptions(k=1),
        no_shadow=True,
    )
    async with grpc.aio.insecure_channel(stack.target, options=CHANNEL_OPTIONS) as channel:
        call = rag_pb2_grpc.RagStub(channel).Answer(request, metadata=(("application", "gateway"),))
        first = await call.read()
        assert first.WhichOneof("event") == "retrieved"
        yield call


@contextlib.contextmanager
def taking_nothing_by_http(stack: Stack) -> Any:
    """A connection on which an answer has begun. As little as possible fits in between, and what does is
    there long before the answer ends, however fast the machine."""
    body = json.dumps(
        {
            "model": "demo",
            "messages": [{"role": "user", "content": QUESTION}],
            "stream": True,
            "n": 2 * BRANCHES,
            "logprobs": True,
            "top_logprobs": 20,
            "max_tokens": MOST_TOKENS,
            "temperature": 1.0,
            "collection": COLLECTION,
            "top_k": 1,
            "ignore_eos": True,
            "shadow": False,
        }
    )
    host, port = stack.state.http.removeprefix("http://").rsplit(":", 1)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: {'slow-' * 25}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(WAIT_S)
        connection.connect((host, int(port)))
        connection.sendall((head + body).encode())
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        yield connection


def all_that_is_left(connection: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            received += piece
    return received


async def read_all(call: Any) -> int:
    taken = 0
    while await call.read() is not grpc.aio.EOF:
        taken += 1
    return taken


async def test_callers_who_take_nothing_are_cut_and_what_was_kept_for_them_is_forgotten(stack: Stack) -> None:
    assert text_of(ask(stack))
    await generator_rests(stack)
    proxy, before = stack.proxy_pid(), scraped(stack)
    held = resident_bytes(proxy)
    async with (
        taking_nothing_by_grpc(stack) as one,
        taking_nothing_by_grpc(stack) as another,
    ):
        with taking_nothing_by_http(stack) as connection:
            assert text_of(await asyncio.to_thread(ask, stack)), "others are answered meanwhile"
            await cut(stack, before, 3)
            left = await asyncio.to_thread(all_that_is_left, connection)
            assert b"data: [DONE]" not in left
        for call in (one, another):
            with pytest.raises(grpc.aio.AioRpcError) as told:
                await read_all(call)
            error = error_of(told.value)
            assert isinstance(error, Overloaded)
            assert f"the caller took nothing of the answer for {STALL_S} s (limits.stall_s)" in error.detail
    await generator_rests(stack)
    after = scraped(stack)
    for name, labels in (CUT, ABORTED):
        assert total(after, name, **labels) - total(before, name, **labels) == 3, name
    assert total(after, "kvquilt_answers_running") == 0
    assert total(after, "kvquilt_num_requests_running") == 0
    assert resident_bytes(proxy) - held < MAY_KEEP_BYTES
    assert text_of(ask(stack))


async def cut(stack: Stack, before: str, num: int) -> None:
    """Waits until so many answers were given up."""
    name, labels = CUT
    enough, ends_s = total(before, name, **labels) + num, time.monotonic() + WAIT_S
    while total(now := await asyncio.to_thread(scraped, stack), name, **labels) < enough:
        assert time.monotonic() < ends_s, f"{ended_so_far(before)}\n\nand now\n\n{ended_so_far(now)}"
        await asyncio.sleep(0.2)


def ended_so_far(scrape: str) -> str:
    shown = ("kvquilt_answers_", "kvquilt_request_success")
    return "\n".join(line for line in scrape.splitlines() if line.startswith(shown))
