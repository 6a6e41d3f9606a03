"""What a client of gRPC raises when a call ends while it sends, in whichever order gRPC learns of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, cast

import grpc
import pytest

from protos.kvquilt.v1 import kv_store_pb2
from shared.clients import grpc_transport
from shared.clients.grpc_transport import GrpcTransport
from shared.errors import Overloaded, Unavailable

Status = tuple[grpc.StatusCode, str]
FULL: Status = grpc.StatusCode.RESOURCE_EXHAUSTED, "the tenant has 1 GB of 1 GB"
COULD_NOT_SEND: Status = grpc.StatusCode.INTERNAL, "Internal error from Core"


class EndedCall:
    """``first``: its status at its end. ``then``: what gRPC puts in that place when it has been looked at
    ``looks`` times more."""

    def __init__(self, first: Status, then: Status, looks: int) -> None:
        self._status, self._then, self._looks = first, then, looks

    def add_done_callback(self, note: Callable[[EndedCall], None]) -> None:
        note(self)

    def __await__(self) -> Generator[Any, None, Any]:
        if not self._looks:
            self._status = self._then
        code, details = self._status
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)
        yield

    async def code(self) -> grpc.StatusCode:
        return self._status[0]

    async def details(self) -> str:
        return self._status[1]

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        self._looks -= 1
        if self._looks < 0:
            self._status = self._then
        return grpc.aio.Metadata()


class Channel:
    def __init__(self, call: EndedCall) -> None:
        self._call = call

    def stream_unary(self, *method: object, **serializers: object) -> Callable[..., EndedCall]:
        return lambda requests, **options: self._call


async def nothing() -> AsyncIterator[kv_store_pb2.PutRequest]:
    return
    yield


async def put(call: EndedCall) -> None:
    transport = GrpcTransport(cast(Any, Channel(call)), "kvquilt.v1.KvStore", "kv_store")
    await transport.client_stream("Put", nothing(), kv_store_pb2.PutResponse, 1.0)


@pytest.mark.parametrize(
    ("first", "then", "looks"),
    [(FULL, FULL, 9), (FULL, COULD_NOT_SEND, 0), (COULD_NOT_SEND, FULL, 0), (COULD_NOT_SEND, FULL, 9)],
    ids=["said", "overwritten", "said before it is read", "said late"],
)
async def test_what_the_service_said_is_raised(first: Status, then: Status, looks: int) -> None:
    with pytest.raises(Overloaded, match="1 GB of 1 GB"):
        await put(EndedCall(first, then, looks))


async def test_where_the_service_said_nothing_it_counts_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_transport, "_SAID_LATE_S", 0.01)
    with pytest.raises(Unavailable):
        await put(EndedCall(COULD_NOT_SEND, COULD_NOT_SEND, 9))
