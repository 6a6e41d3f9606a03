"""Makes a Ray Serve application of a service, and what its replicas serve."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import PlainTextResponse
from ray import serve

from shared.config import load
from shared.errors import KvquiltError
from shared.rpc import HealthServicer

log = logging.getLogger(__name__)
LoadedT = TypeVar("LoadedT")


class _ByGrpcAlone:
    """Answers what comes by HTTP to the route prefix without which Serve hides an application from gRPC."""

    application: str

    async def __call__(self, request: Request) -> Response:
        return PlainTextResponse(
            f"{self.application} answers gRPC only; docs/http.md says what HTTP does", 404
        )


def builder_of(service: type[HealthServicer], schema: Any) -> Callable[[dict[str, Any]], serve.Application]:
    """The function that Serve builds the application with, from settings as plain values. Its replicas are
    made of a ``schema``, which has a section ``deployment``."""

    def build(args: dict[str, Any]) -> serve.Application:
        """
        Raises:
            ConfigError: names the setting.
        """
        config = load(schema, args)
        deployment = serve.deployment(name=service.application, **config.deployment.serve_options())
        over_http = hasattr(service, "__serve_build_asgi_app__")
        served = service if over_http else type(service.__name__, (service, _ByGrpcAlone), {})
        return deployment(served).bind(config)

    return build


def load_or_error(load: Callable[[], LoadedT], otherwise: str) -> LoadedT | KvquiltError:
    """What ``load`` returns, or why it fails; the log then says ``otherwise``. It is no reason to crash again
    and again: the replica stays, and Health says what is wrong."""
    try:
        return load()
    except KvquiltError as error:
        log.error("%s: %s", otherwise, error.detail)
        return error
