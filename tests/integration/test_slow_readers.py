"""A caller that takes nothing of its answer is cut, and what worked for it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from protos.kvquilt.v1 import common_pb2, rag_pb2, rag_pb2_grpc
from shared.clients.grpc_transport import error_of
from shared.errors import Overloaded
from shared.request import RequestContext
from shared.rpc import HealthServicer, server_stream
from shared.slow_readers import SlowGrpcReaders

STALL_S = 0.3
ANSWER = rag_pb2.RatedAnswer(comment="x" * 60_000)


class Endless(HealthServicer, rag_pb2_grpc.RagServicer):
    """``given``: messages that gRPC took; ``ended``: the work for the caller is over. As Serve's proxy does,
    it goes on unless it is cancelled while it waits for more."""

    application = "gateway"

    def __init__(self) -> None:
        self.given, self.ended = 0, asyncio.Event()

    @server_stream
    async def ListFeedback(
        self, request: rag_pb2.ListFeedbackRequest, ctx: RequestContext
    ) -> AsyncIterator[rag_pb2.RatedAnswer]:
        while True:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                self.ended.set()
                raise
            yield ANSWER
            self.given += 1


@asynccontextmanager
async def serving(servicer: Endless, stall_s: float = STALL_S) -> AsyncIterator[Any]:
    server = grpc.aio.server(interceptors=[SlowGrpcReaders(stall_s)])
    rag_pb2_grpc.add_RagServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield rag_pb2_grpc.RagStub(channel)  # type: ignore[no-untyped-call]
    finally:
        await server.stop(None)


def asked() -> rag_pb2.ListFeedbackRequest:
    return rag_pb2.ListFeedbackRequest(meta=common_pb2.RequestMeta(), collection="c")


async def read_all(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_caller_that_stops_reading_is_told_so_and_the_work_for_it_ends() -> None:
    endless = Endless()
    async with serving(endless) as stub:
        call = stub.ListFeedback(asked())
        assert await call.read() == ANSWER
        async with asyncio.timeout(60):
            await endless.ended.wait()
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await read_all(call)
    assert endless.given < 1000
    told = error_of(cut.value)
    assert isinstance(told, Overloaded)
    assert told.detail.startswith("the caller took nothing of the answer for 0.3 s (limits.stall_s)")


async def test_so_does_the_work_for_one_that_goes_away_without_reading() -> None:
    endless = Endless()
    async with serving(endless) as stub:
        call = stub.ListFeedback(asked())
        assert await call.read() == ANSWER
        call.cancel()
        async with asyncio.timeout(60):
            await endless.ended.wait()


async def test_one_that_reads_on_in_time_is_served() -> None:
    endless = Endless()
    async with serving(endless, stall_s=60) as stub:
        call = stub.ListFeedback(asked())
        given = -1
        while endless.given > given:  # until nothing more fits between them
            given = endless.given
            await asyncio.sleep(0.2)
        for _ in range(given + 10):
            assert await call.read() == ANSWER
        assert not endless.ended.is_set()
        call.cancel()
