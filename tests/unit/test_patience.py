"""A gRPC channel to a server that is away: asked again as long as the caller's deadline lets it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from protos.kvquilt.v1 import common_pb2, rag_pb2
from shared.clients.grpc_transport import GrpcTransport
from shared.errors import Unavailable
from tests.virtual_time import run_virtually, virtual_loop

Metadata = grpc.aio.Metadata


class Channel:
    """Unavailable before the instant ``away_until_s``; remembers how long each call was to wait."""

    def __init__(self, away_until_s: float) -> None:
        self.away_until_s = away_until_s
        self.timeouts_s: list[float] = []

    def unary_unary(self, path: str, **options: Any) -> Callable[..., Awaitable[common_pb2.HealthResponse]]:
        async def call(request: object, *, metadata: object, timeout: float) -> common_pb2.HealthResponse:
            self._answer(timeout)
            return common_pb2.HealthResponse(ready=True)

        return call

    def unary_stream(self, path: str, **options: Any) -> Callable[..., Stream]:
        return lambda request, metadata, timeout: Stream(self, timeout)

    def _answer(self, timeout_s: float) -> None:
        self.timeouts_s.append(timeout_s)
        if asyncio.get_running_loop().time() < self.away_until_s:
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), "nobody is there")


class Stream:
    def __init__(self, channel: Channel, timeout_s: float) -> None:
        self._channel, self._timeout_s = channel, timeout_s

    async def __aiter__(self) -> AsyncIterator[rag_pb2.AnswerEvent]:
        self._channel._answer(self._timeout_s)
        yield rag_pb2.AnswerEvent()

    def cancel(self) -> None:
        pass


async def unary(transport: GrpcTransport, timeout_s: float) -> bool:
    request, response = common_pb2.HealthRequest(), common_pb2.HealthResponse
    return (await transport.unary("Health", request, response, timeout_s)).ready


async def stream(transport: GrpcTransport, timeout_s: float) -> bool:
    request, response = rag_pb2.AnswerRequest(), rag_pb2.AnswerEvent
    return len([event async for event in transport.stream("Answer", request, response, timeout_s)]) == 1


@pytest.mark.parametrize("ask", [unary, stream])
def test_who_comes_back_within_the_deadline_is_found(
    ask: Callable[[GrpcTransport, float], Awaitable[bool]], caplog: pytest.LogCaptureFixture
) -> None:
    channel = Channel(away_until_s=45.0)

    async def work() -> float:
        assert await ask(GrpcTransport(channel, "a.Service", "a", patient=True), 60.0)
        return virtual_loop().time()

    with caplog.at_level(logging.WARNING):
        took_s = run_virtually(work())
    assert 45.0 <= took_s < 47.1
    assert channel.timeouts_s[-1] == pytest.approx(60.0 - took_s), "no call outlasts the deadline"
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == ["nobody is there"]


@pytest.mark.parametrize("ask", [unary, stream])
def test_who_stays_away_is_told_shortly_before_the_deadline(
    ask: Callable[[GrpcTransport, float], Awaitable[bool]],
) -> None:
    channel = Channel(away_until_s=1e9)

    async def work() -> float:
        with pytest.raises(Unavailable, match="nobody is there"):
            await ask(GrpcTransport(channel, "a.Service", "a", patient=True), 60.0)
        return virtual_loop().time()

    assert 57.0 <= run_virtually(work()) <= 59.5
