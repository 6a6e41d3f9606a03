"""Every kind of RPC knows who calls before it looks at anything."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from protos.kvquilt.v1 import common_pb2
from shared.clients.health import ServiceHealth
from shared.errors import PermissionDenied, Unauthenticated
from shared.principals.callers import Call, Caller
from shared.principals.principal import Principal, Role
from shared.request import RequestContext
from shared.rpc import HealthServicer, both_streams, client_stream, context_of, server_stream, unary

Request = common_pb2.HealthRequest
ANNA = Principal("key/anna", "acme", frozenset({Role.READER}))


class Callers:
    """Knows ``anna``. ``asked``: the methods that were called, and how."""

    trouble = "the file of keys is damaged"
    identity = None

    def __init__(self) -> None:
        self.asked: list[tuple[str, Call | None]] = []

    async def of_call(self, method: str, call: Call | None) -> Caller:
        self.asked.append((method, call))
        metadata = dict(call.metadata) if call else {}
        if method != "Health" and "authorization" not in metadata:
            raise Unauthenticated("who are you?")
        roles = {"root": frozenset({Role.ADMIN}), "anna": ANNA.roles}
        given = roles.get(metadata.get("authorization", ""), frozenset())
        return Caller(Principal("key/anna", "acme", given))


class Context:
    def __init__(self, name: str = "") -> None:
        self._metadata = [("authorization", name)] if name else []
        self.code: grpc.StatusCode | None = None

    def invocation_metadata(self) -> Any:
        return self._metadata

    def peer(self) -> str:
        return "ipv4:10.0.0.9:5"

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None: ...
    def set_trailing_metadata(self, trailing_metadata: Any) -> None: ...


class Service(HealthServicer):
    application = "service"

    def __init__(self) -> None:
        self.callers = Callers()
        self.seen: list[Principal] = []
        self.read = 0

    @unary
    async def One(self, request: Request, ctx: RequestContext) -> common_pb2.HealthResponse:
        self.seen.append(ctx.principal)
        return common_pb2.HealthResponse()

    @server_stream
    async def Many(self, request: Request, ctx: RequestContext) -> AsyncIterator[int]:
        self.seen.append(ctx.principal)
        yield 1

    @client_stream
    async def Take(self, requests: AsyncIterator[Request]) -> common_pb2.HealthResponse:
        async for request in requests:
            self.seen.append(context_of(request.meta).principal)
        return common_pb2.HealthResponse()

    @both_streams
    async def Both(self, requests: AsyncIterator[Request]) -> AsyncIterator[int]:
        async for request in requests:
            self.seen.append(context_of(request.meta).principal)
            yield 1

    async def healthy(self, ctx: RequestContext) -> ServiceHealth:
        return ServiceHealth(self.application, True, "warm", {"chunks": "7"})

    async def requests(self) -> AsyncIterator[Request]:
        self.read += 1
        yield Request(meta=common_pb2.RequestMeta(tenant="victim"))

    async def call(self, method: str, context: Context | None) -> None:
        argument: Any = Request(meta=common_pb2.RequestMeta(tenant="victim"))
        if method in ("Take", "Both"):
            argument = self.requests()
        called = getattr(self, method)(argument, context)
        if hasattr(called, "__aiter__"):
            _ = [one async for one in called]
        else:
            await called


METHODS = ("One", "Many", "Take", "Both")


@pytest.mark.parametrize("method", METHODS)
async def test_the_principal_is_the_callers_and_not_the_bodys(method: str) -> None:
    service = Service()
    await service.call(method, Context("anna"))
    assert service.seen == [ANNA]
    ((asked, call),) = service.callers.asked
    assert asked == method
    assert call is not None
    assert call.peer == "ipv4:10.0.0.9:5"


@pytest.mark.parametrize("method", METHODS)
async def test_a_stranger_is_refused_before_anything_is_read(method: str) -> None:
    service, context = Service(), Context()
    with contextlib.suppress(Unauthenticated):  # of a stream, under Serve
        await service.call(method, context)
    assert context.code is grpc.StatusCode.UNAUTHENTICATED
    assert service.seen == []
    if method == "Take":
        assert service.read == 0


@pytest.mark.parametrize("method", METHODS)
async def test_over_a_handle_the_error_is_raised_as_it_is(method: str) -> None:
    service = Service()
    with pytest.raises(Unauthenticated):
        await service.call(method, None)
    assert service.callers.asked == [(method, None)]


async def test_one_call_knows_nothing_of_the_one_before() -> None:
    service = Service()
    await service.call("Take", Context("anna"))
    service.callers = None  # type: ignore[assignment]
    await service.call("Take", Context())
    assert [principal.name for principal in service.seen] == ["key/anna", "operator"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("", ("", {})),
        ("anna", ("warm", {})),
        ("root", ("warm; the file of keys is damaged", {"chunks": "7"})),
    ],
)
async def test_health_tells_everybody_what_he_may_know(name: str, told: tuple[str, dict[str, str]]) -> None:
    health = await Service().Health(Request(), Context(name))
    assert health.ready
    assert (health.detail, dict(health.facts)) == told


async def test_a_stranger_costs_the_service_nothing() -> None:
    class Asked(Service):
        async def healthy(self, ctx: RequestContext) -> ServiceHealth:
            raise AssertionError("asked")

    assert (await Asked().Health(Request(), Context())).ready


async def test_a_denied_call_says_so() -> None:
    class Denying(Callers):
        async def of_call(self, method: str, call: Call | None) -> Caller:
            raise PermissionDenied("no")

    service, context = Service(), Context("anna")
    service.callers = Denying()
    await service.call("One", context)
    assert context.code is grpc.StatusCode.PERMISSION_DENIED
