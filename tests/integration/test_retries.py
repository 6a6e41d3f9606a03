"""A client that asks again: only while nothing has come back, only where that changes nothing, only as long
as there is time."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from protos.kvquilt.v1 import common_pb2, generation_pb2, kv_store_pb2, rag_pb2
from shared.clients.grpc_transport import GrpcTransport
from shared.errors import DeadlineExceeded, InternalError, KvquiltError, NotFound, Overloaded, Unavailable

SERVICE = "kvquilt.v1.Rag"


class Server:
    """Fails as it is told; then answers. ``after``: messages of a stream before it fails."""

    def __init__(self, *codes: grpc.StatusCode, after: int = 0, details: str = "the node is gone") -> None:
        self.failures, self.after, self.details = list(codes), after, details
        self.num_calls = 0

    async def health(
        self, request: common_pb2.HealthRequest, context: grpc.aio.ServicerContext
    ) -> common_pb2.HealthResponse:
        await self._fail(context)
        return common_pb2.HealthResponse(service="gateway", ready=True)

    async def answer(
        self, request: rag_pb2.AnswerRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[rag_pb2.AnswerEvent]:
        for n in range(3):
            if n == self.after:
                await self._fail(context)
            yield rag_pb2.AnswerEvent(token=generation_pb2.GeneratedToken(token_id=n))

    async def put(
        self, requests: AsyncIterator[kv_store_pb2.PutRequest], context: grpc.aio.ServicerContext
    ) -> kv_store_pb2.PutResponse:
        received = 0
        async for _ in requests:
            if received == self.after:
                await self._fail(context)
            received += 1
        return kv_store_pb2.PutResponse(existed=True)

    async def _fail(self, context: grpc.aio.ServicerContext) -> None:
        self.num_calls += 1
        if self.failures:
            await context.abort(self.failures.pop(0), self.details)


@asynccontextmanager
async def connected(server: Server, patience_s: float = math.inf) -> AsyncIterator[GrpcTransport]:
    methods = {
        "Health": grpc.unary_unary_rpc_method_handler(
            server.health, common_pb2.HealthRequest.FromString, common_pb2.HealthResponse.SerializeToString
        ),
        "Answer": grpc.unary_stream_rpc_method_handler(
            server.answer, rag_pb2.AnswerRequest.FromString, rag_pb2.AnswerEvent.SerializeToString
        ),
        "Put": grpc.stream_unary_rpc_method_handler(
            server.put, kv_store_pb2.PutRequest.FromString, kv_store_pb2.PutResponse.SerializeToString
        ),
    }
    running = grpc.aio.server()
    running.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = running.add_insecure_port("127.0.0.1:0")
    await running.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield GrpcTransport(channel, SERVICE, "gateway", patience_s)
    await running.stop(0)


async def health(transport: GrpcTransport, timeout_s: float = 10.0) -> bool:
    return (
        await transport.unary("Health", common_pb2.HealthRequest(), common_pb2.HealthResponse, timeout_s)
    ).ready


async def tokens(transport: GrpcTransport, timeout_s: float = 10.0) -> list[int]:
    events = transport.stream("Answer", rag_pb2.AnswerRequest(), rag_pb2.AnswerEvent, timeout_s)
    return [event.token.token_id async for event in events]


async def test_a_call_that_found_nobody_is_made_again() -> None:
    server = Server(*[grpc.StatusCode.UNAVAILABLE] * 3)
    async with connected(server) as transport:
        assert await health(transport)
        assert server.num_calls == 4
        server.failures = [grpc.StatusCode.UNAVAILABLE] * 3
        assert await tokens(transport) == [0, 1, 2]


@pytest.mark.parametrize(
    "details", ["The actor died unexpectedly before finishing.", "Internal error from Core"]
)
async def test_what_was_lost_before_the_first_message_counts_as_nobody(details: str) -> None:
    async with connected(Server(grpc.StatusCode.INTERNAL, details=details)) as transport:
        assert await tokens(transport) == [0, 1, 2]


async def test_what_goes_on_failing_is_told_in_the_end() -> None:
    server = Server(*[grpc.StatusCode.UNAVAILABLE] * 99)
    async with connected(server) as transport:
        with pytest.raises(Unavailable, match="the node is gone"):
            await health(transport, timeout_s=3.0)
        of_health = server.num_calls
        with pytest.raises(Unavailable, match="the node is gone"):
            await tokens(transport, timeout_s=3.0)
    for num_calls in (of_health, server.num_calls - of_health):
        assert (
            1 < num_calls <= 5
        )  # pauses of 0.1, 0.2, 0.4 and 0.8 s fit into the time, or fewer on a busy machine


async def test_an_answer_that_has_begun_is_never_begun_anew() -> None:
    server = Server(grpc.StatusCode.UNAVAILABLE, after=1)
    async with connected(server) as transport:
        events = transport.stream("Answer", rag_pb2.AnswerRequest(), rag_pb2.AnswerEvent, 10.0)
        assert (await anext(events)).token.token_id == 0
        with pytest.raises(Unavailable):
            await anext(events)
    assert server.num_calls == 1


@pytest.mark.parametrize(
    ("code", "error"),
    [(grpc.StatusCode.INTERNAL, InternalError), (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceeded)],
)
async def test_other_failures_are_told_at_once(code: grpc.StatusCode, error: type[KvquiltError]) -> None:
    server = Server(code)
    async with connected(server) as transport:
        with pytest.raises(error):
            await health(transport)
        server.failures = [code]
        with pytest.raises(error):
            await tokens(transport)
    assert server.num_calls == 2


async def test_without_patience_a_call_is_made_once() -> None:
    server = Server(grpc.StatusCode.UNAVAILABLE)
    async with connected(server, patience_s=0.0) as transport:
        with pytest.raises(Unavailable):
            await health(transport)
    assert server.num_calls == 1


async def test_an_application_that_is_not_deployed_there_is_unavailable_as_it_is_by_handle() -> None:
    told_by_serve = "Application 'gateway' not found. Ping /ray.serve.RayServeAPIService/ListApplications"
    server = Server(grpc.StatusCode.NOT_FOUND, details=told_by_serve)
    async with connected(server, patience_s=0.0) as transport:
        with pytest.raises(Unavailable, match="'gateway' is not deployed where it was called"):
            await health(transport)
        server.failures = [grpc.StatusCode.NOT_FOUND]
        server.details = "NOT_FOUND: no document 'a'"
        with pytest.raises(NotFound, match="no document 'a'"):
            await health(transport)


async def test_what_ends_an_upload_is_told_also_while_more_of_it_is_sent() -> None:
    """gRPC's client reports now and then that it could not send, in place of what the service said."""
    uploads = 200

    async def pieces() -> AsyncIterator[kv_store_pb2.PutRequest]:
        for _ in range(50):
            yield kv_store_pb2.PutRequest(data=bytes(1_000_000))

    full = [grpc.StatusCode.RESOURCE_EXHAUSTED] * uploads
    failing = Server(*full, after=5, details="the tenant has 1 GB of 1 GB")
    async with connected(failing) as transport:
        for _ in range(uploads):
            with pytest.raises(Overloaded, match="1 GB of 1 GB"):
                await transport.client_stream("Put", pieces(), kv_store_pb2.PutResponse, 30.0)
        assert (await transport.client_stream("Put", pieces(), kv_store_pb2.PutResponse, 30.0)).existed
