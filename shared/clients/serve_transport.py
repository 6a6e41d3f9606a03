"""A Ray Serve handle as transport: requests between services follow Serve's routers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from google.protobuf.message import Message
from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from shared import errors
from shared.clients.transport import ResponseT
from shared.errors import KvquiltError
from shared.principals.credentials import ServiceIdentity
from shared.request import DEFAULT_TENANT


class ServeTransport:
    """Calls the ingress deployment of ``application``. The handle is looked up at the first call, since
    applications start in any order. ``identity``: of the service that calls, which says itself who asks where
    a request does not; None: nobody asks."""

    def __init__(self, application: str, identity: ServiceIdentity | None = None) -> None:
        self._application = application
        self._identity = identity
        self._handle: Any = None

    async def unary(
        self, method: str, request: Message, response_type: type[ResponseT], timeout_s: float
    ) -> ResponseT:
        try:
            self._introduce(request, timeout_s)
            call = getattr(self._options(stream=False), method).remote(request)
            response: ResponseT = await asyncio.wait_for(_result(call), timeout_s)
        except Exception as error:
            raise self._error_of(error, method) from None
        return response

    async def stream(
        self, method: str, request: Message, response_type: type[ResponseT], timeout_s: float
    ) -> AsyncGenerator[ResponseT, None]:
        responses: Any = None
        try:
            async with asyncio.timeout(timeout_s):
                self._introduce(request, timeout_s)
                responses = getattr(self._options(stream=True), method).remote(request)
                async for response in responses:
                    yield response
        except Exception as error:
            raise self._error_of(error, method) from None
        finally:
            if responses is not None:
                responses.cancel()  # dropping the object alone lets the callee run to its end

    def _introduce(self, request: Any, lifetime_s: float) -> None:
        """A request without a principal is the service's own: nobody asked for it."""
        if self._identity is not None and not request.meta.principal:
            request.meta.principal = self._identity.sign(request.meta.tenant or DEFAULT_TENANT, lifetime_s)

    def _options(self, stream: bool) -> Any:
        if self._handle is None:
            self._handle = serve.get_app_handle(self._application)
        return self._handle.options(stream=stream, _by_reference=False)

    def _error_of(self, error: Exception, method: str) -> KvquiltError:
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, KvquiltError):
            return cause
        if isinstance(error, TimeoutError):
            return errors.DeadlineExceeded(f"{self._application}.{method} did not answer in time")
        if isinstance(error, BackPressureError):
            return errors.Overloaded(f"{self._application} has no room for more requests; retry later")
        if isinstance(error, (RayActorError, DeploymentUnavailableError, RayServeException)):
            return errors.Unavailable(f"{self._application} is not available; retry")
        raise error


async def _result(call: Any) -> Any:
    return await call
