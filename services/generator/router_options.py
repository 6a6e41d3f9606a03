"""Attaches the router to the generator's deployment."""

from __future__ import annotations

import logging
import os
from typing import Any

from services.generator.config import GeneratorConfig
from shared.config import to_dict
from shared.errors import ConfigError

ROUTER = "services.generator.routing.ChunkRouter"
HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"
log = logging.getLogger(__name__)


def router_options(config: GeneratorConfig) -> dict[str, Any]:
    """Keyword arguments of ``ray.serve.deployment``: none where questions go by queues.

    Raises:
        ConfigError: Serve would not ask the router.
    """
    if config.routing == "queue":
        return {}
    if os.environ.get(HAPROXY) == "1":
        raise ConfigError(
            f"generator.routing: {config.routing} does not go with {HAPROXY}=1, by which HAProxy chooses "
            "replicas; set routing to queue, or leave HAProxy out"
        )
    if config.routing == "chunks" and not config.kv_store:
        log.warning(
            "generator.routing: without generator.kv_store nobody tells routers what replicas hold; "
            "questions go by the hash of their heaviest chunk and by load"
        )
    kwargs = {
        "metrics": to_dict(config.deployment.metrics),
        "listens": bool(config.kv_store) and config.routing == "chunks",
        "settings": to_dict(config.router),
        "by_hash": config.routing == "rendezvous",
    }
    return {"request_router_config": {"request_router_class": ROUTER, "request_router_kwargs": kwargs}}
