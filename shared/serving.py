"""Makes a Ray Serve application of a service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray import serve

from shared.config import load
from shared.rpc import HealthServicer


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
        return deployment(service).bind(config)

    return build
