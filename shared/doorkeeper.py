"""Lets nobody but the installation's own services call a gRPC server of theirs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from shared.errors import KvquiltError
from shared.principals.credentials import SIGNED, ServiceIdentity
from shared.principals.services import check_service
from shared.status import DETAILS_KEY, to_status


class Doorkeeper(grpc.aio.ServerInterceptor):
    """Looks at every call's metadata before its message is read."""

    def __init__(self, identity: ServiceIdentity) -> None:
        self._signer = identity.signer

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        try:
            check_service(self._signer, str(dict(details.invocation_metadata or ()).get(SIGNED, "")))
        except KvquiltError as error:
            return grpc.stream_stream_rpc_method_handler(_refusing(error))
        return await continuation(details)


def _refusing(error: KvquiltError) -> Callable[[Any, Any], Awaitable[None]]:
    async def refuse(_requests: Any, context: Any) -> None:
        name, status = to_status(error)
        await context.abort(grpc.StatusCode[name], error.detail, ((DETAILS_KEY, status),))

    return refuse
