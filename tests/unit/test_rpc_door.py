"""Calls that come from outside are counted where they enter a service, for as long as they last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from protos.kvquilt.v1 import common_pb2, generation_pb2
from shared.admission.entrance import Entrance
from shared.config import load
from shared.errors import Overloaded
from shared.limits import RequestLimits
from shared.request import RequestContext
from shared.rpc import HealthServicer, both_streams, server_stream, unary
from shared.status import DETAILS_KEY, from_status


class Context:
    """Like grpc.aio's."""

    def __init__(self) -> None:
        self.code: grpc.StatusCode | None = None
        self.details, self.trailing = "", dict[str, Any]()

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        self.trailing = dict(trailing_metadata)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def abort(self) -> None:
        raise AssertionError("not called")


class Service(HealthServicer):
    application = "test"

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.guard(load(RequestLimits, {"per_principal": {"concurrent": 1}}))

    @unary
    async def Ask(self, request: common_pb2.HealthRequest, ctx: RequestContext) -> common_pb2.HealthResponse:
        await self.goes_on.wait()
        return common_pb2.HealthResponse(ready=True)

    @server_stream
    async def Watch(self, request: common_pb2.HealthRequest, ctx: RequestContext) -> AsyncIterator[int]:
        yield 1
        yield 2

    @both_streams
    async def Explore(self, requests: AsyncIterator[generation_pb2.ExploreRequest]) -> AsyncIterator[int]:
        async for _ in requests:
            yield 1


def asked(tenant: str = "a") -> common_pb2.HealthRequest:
    return common_pb2.HealthRequest(meta=common_pb2.RequestMeta(tenant=tenant))


async def opened() -> AsyncIterator[generation_pb2.ExploreRequest]:
    yield generation_pb2.ExploreRequest(open=generation_pb2.ForestOpen(meta=asked().meta))
    yield generation_pb2.ExploreRequest()


def under_way(service: Service) -> int:
    assert isinstance(service.door, Entrance)
    service.door.check_invariants()
    return sum(account.under_way for account in service.door._accounts.values())


async def test_a_call_is_counted_until_it_ends_and_the_next_is_refused_with_a_time() -> None:
    service, refused = Service(), Context()
    first = asyncio.create_task(service.Ask(asked(), Context()))
    await asyncio.sleep(0)
    await service.Ask(asked(), refused)
    assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    error = from_status("RESOURCE_EXHAUSTED", refused.details, refused.trailing[DETAILS_KEY])
    assert isinstance(error, Overloaded)
    assert error.retry_after_s == 1.0
    service.goes_on.set()
    assert (await first).ready
    assert (await service.Ask(asked(), Context())).ready
    assert under_way(service) == 0


async def test_so_are_streams_of_answers_and_of_questions() -> None:
    service = Service()
    for start in (lambda: service.Watch(asked(), Context()), lambda: service.Explore(opened(), Context())):
        stream = start()
        assert await anext(stream) == 1
        assert under_way(service) == 1
        refused = Context()
        assert [answer async for answer in service.Watch(asked(), refused)] == []
        assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        await stream.aclose()
        assert under_way(service) == 0


async def test_a_refused_caller_does_not_end_what_is_under_way() -> None:
    service = Service()
    stream = service.Explore(opened(), Context())
    assert await anext(stream) == 1
    refused = service.Explore(opened(), Context())
    assert [answer async for answer in refused] == []
    assert under_way(service) == 1
    assert await anext(stream) == 1
    await stream.aclose()


async def test_health_is_told_however_many_ask() -> None:
    service = Service()
    stream = service.Watch(asked(), Context())
    await anext(stream)
    assert (await service.Health(asked(), Context())).ready
    await stream.aclose()


async def test_what_comes_over_a_handle_is_not_counted() -> None:
    service = Service()
    service.goes_on.set()
    stream = service.Watch(asked())
    await anext(stream)
    assert (await service.Ask(asked())).ready
    assert [answer async for answer in stream] == [2]
