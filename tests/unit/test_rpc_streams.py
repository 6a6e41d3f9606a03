"""A broken stream never looks like a whole one, whatever carries it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from protos.kvquilt.v1 import common_pb2
from shared.errors import ContextTooLong, InternalError, KvquiltError, StorageFull
from shared.request import RequestContext
from shared.rpc import both_streams, server_stream
from shared.status import DETAILS_KEY, STATUS_OF, from_status, with_code


class Numbers:
    def __init__(self, error: Exception) -> None:
        self._error = error

    @server_stream
    async def Count(self, request: common_pb2.HealthRequest, ctx: RequestContext) -> AsyncIterator[int]:
        yield 1
        raise self._error

    @both_streams
    async def Follow(self, requests: AsyncIterator[common_pb2.HealthRequest]) -> AsyncIterator[int]:
        async for _ in requests:
            yield 1
        raise self._error


class ServeContext:
    """Like Serve's: what is set reaches the caller with the next message, or with an exception (code and
    details)."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = {}

    def set_code(self, code: grpc.StatusCode) -> None:
        self.status["code"] = code

    def set_details(self, details: str) -> None:
        self.status["details"] = details

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        self.status["trailing"] = trailing_metadata

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


class PlainContext(ServeContext):
    """Like grpc.aio's: what is set when the method returns is the status."""

    async def abort(self) -> None:
        raise AssertionError("not called")


async def test_under_serve_a_failing_stream_raises_and_its_details_name_the_error() -> None:
    context = ServeContext()
    stream = Numbers(ContextTooLong("8 positions")).Count(common_pb2.HealthRequest(), context)
    assert await anext(stream) == 1
    with pytest.raises(ContextTooLong):
        await anext(stream)
    assert context.status["code"] is grpc.StatusCode.INVALID_ARGUMENT
    error = from_status("INVALID_ARGUMENT", context.status["details"], None)
    assert isinstance(error, ContextTooLong)
    assert error.detail == "8 positions"


async def test_so_does_one_that_follows_a_stream_of_requests() -> None:
    async def requests() -> AsyncIterator[common_pb2.HealthRequest]:
        for _ in range(2):
            yield common_pb2.HealthRequest()

    context = ServeContext()
    stream = Numbers(ContextTooLong("8 positions")).Follow(requests(), context)
    assert [await anext(stream), await anext(stream)] == [1, 1]
    with pytest.raises(ContextTooLong):
        await anext(stream)
    assert isinstance(from_status("INVALID_ARGUMENT", context.status["details"], None), ContextTooLong)


async def test_one_that_refuses_its_caller_takes_what_that_is_still_sending() -> None:
    class Refusing:
        @both_streams
        async def Follow(self, requests: AsyncIterator[common_pb2.HealthRequest]) -> AsyncIterator[int]:
            await anext(aiter(requests))
            raise StorageFull("no room")
            yield

    taken = []

    async def requests() -> AsyncIterator[common_pb2.HealthRequest]:
        for number in range(5):
            taken.append(number)
            yield common_pb2.HealthRequest()

    with pytest.raises(StorageFull):
        await anext(Refusing().Follow(requests()))
    assert taken == [0, 1, 2, 3, 4]


async def test_under_serve_an_unexpected_error_tells_nothing_of_itself() -> None:
    context = ServeContext()
    with pytest.raises(InternalError) as told:
        [_ async for _ in Numbers(RuntimeError("/secret/path")).Count(common_pb2.HealthRequest(), context)]
    assert "secret" not in str(context.status) + str(told.value)
    assert told.value.__cause__ is None
    assert told.value.__suppress_context__


async def test_on_a_plain_server_a_failing_stream_returns_with_its_status() -> None:
    context = PlainContext()
    assert [n async for n in Numbers(StorageFull("full")).Count(common_pb2.HealthRequest(), context)] == [1]
    trailing = dict(context.status["trailing"])
    assert isinstance(
        from_status("RESOURCE_EXHAUSTED", context.status["details"], trailing[DETAILS_KEY]), StorageFull
    )


async def test_through_a_handle_a_failing_stream_raises_the_error_itself() -> None:
    with pytest.raises(StorageFull):
        [_ async for _ in Numbers(StorageFull("full")).Count(common_pb2.HealthRequest())]


@pytest.mark.parametrize("kind", [k for k in STATUS_OF if k is not KvquiltError], ids=lambda k: k.__name__)
def test_every_error_survives_in_its_details(kind: type[KvquiltError]) -> None:
    error = from_status(STATUS_OF[kind], with_code(kind("a: b")), None)
    assert type(error) is kind
    assert error.detail == "a: b"


def test_a_code_that_contradicts_the_status_is_only_text() -> None:
    error = from_status("NOT_FOUND", "STORAGE_FULL: x", None)
    assert error.detail == "STORAGE_FULL: x"
    assert error.code == "NOT_FOUND"
