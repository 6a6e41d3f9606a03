"""Every call to a service is counted once, by what came of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from protos.kvquilt.v1 import common_pb2
from shared.errors import KvquiltError, NotFound
from shared.metrics.recorder import Metrics
from shared.request import RequestContext
from shared.rpc import HealthServicer, server_stream, unary
from tests.unit.metrics.test_recorder import samples

REQUEST = common_pb2.HealthRequest()


class Service(HealthServicer):
    application = "service"

    def __init__(self, error: Exception | None = None) -> None:
        self.metrics = Metrics()
        self._error = error

    @unary
    async def One(self, request: common_pb2.HealthRequest, ctx: RequestContext) -> common_pb2.HealthResponse:
        if self._error is not None:
            raise self._error
        return common_pb2.HealthResponse()

    @server_stream
    async def Many(self, request: common_pb2.HealthRequest, ctx: RequestContext) -> AsyncIterator[int]:
        yield 1
        if self._error is not None:
            raise self._error
        yield 2


class Context:
    """Of a plain gRPC server."""

    def set_code(self, code: Any) -> None: ...
    def set_details(self, details: str) -> None: ...
    def set_trailing_metadata(self, trailing_metadata: Any) -> None: ...
    async def abort(self) -> None: ...
    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()


def counted(service: Service) -> dict[str, float]:
    assert service.metrics is not None
    return {name: v for name, v in samples(service.metrics).items() if name.startswith("kvquilt_rpcs")}


async def test_what_was_answered_is_ok() -> None:
    service = Service()
    await service.One(REQUEST)
    assert [one async for one in service.Many(REQUEST)] == [1, 2]
    assert counted(service) == {
        "kvquilt_rpcs_total{code=OK,method=One}": 1,
        "kvquilt_rpcs_total{code=OK,method=Many}": 1,
    }
    assert service.metrics is not None
    assert samples(service.metrics)["kvquilt_rpc_seconds_count{method=One}"] == 1


@pytest.mark.parametrize(
    ("error", "code"), [(NotFound("nothing"), "NOT_FOUND"), (ZeroDivisionError(), "INTERNAL")]
)
@pytest.mark.parametrize("context", [None, Context()])
async def test_an_error_is_counted_by_its_code_whoever_is_told(
    error: Exception, code: str, context: Context | None
) -> None:
    service = Service(error)
    with contextlib.suppress(KvquiltError):  # over a handle it is raised
        await service.One(REQUEST, context)
    with contextlib.suppress(KvquiltError):
        assert [one async for one in service.Many(REQUEST, context)] == [1]
    assert counted(service) == {
        f"kvquilt_rpcs_total{{code={code},method=One}}": 1,
        f"kvquilt_rpcs_total{{code={code},method=Many}}": 1,
    }


async def test_a_caller_who_leaves_a_stream_is_counted_as_such() -> None:
    service = Service()
    stream = service.Many(REQUEST)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert counted(service) == {"kvquilt_rpcs_total{code=CANCELLED,method=Many}": 1}
