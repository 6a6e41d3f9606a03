"""What replicas of Ray Serve have in common."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import ray._private.worker
from fastapi import Request, Response
from fastapi.responses import PlainTextResponse
from ray import serve
from ray.serve.exceptions import RayServeException

from shared.errors import KvquiltError
from shared.metrics.config import MetricsConfig
from shared.metrics.node import NodeDoor, Outlet
from shared.metrics.recorder import Metrics

log = logging.getLogger(__name__)
_OTHERS_FIRST_S = 15.0
LoadedT = TypeVar("LoadedT")


class ByGrpcAlone:
    """Answers what comes by HTTP to the route prefix without which Serve hides an application from gRPC."""

    application: str

    async def __call__(self, request: Request) -> Response:
        return PlainTextResponse(
            f"{self.application} answers gRPC only; docs/http.md says what HTTP does", 404
        )


def load_or_error(load: Callable[[], LoadedT], otherwise: str) -> LoadedT | KvquiltError:
    """Returns the result of ``load``, or why it fails; the log then says ``otherwise``. It is no reason to
    crash again and again: the replica stays, and Health says what is wrong.

    No later collection of garbage looks through what the process has then: of torch, transformers and Ray
    alone these are 400,000 objects, and a question would wait for them now and then, 0.2 to 0.4 s.
    """
    try:
        loaded = load()
    except KvquiltError as error:
        log.error("%s: %s", otherwise, error.detail)
        return error
    gc.collect()
    gc.freeze()
    return loaded


def metrics_of_replica(application: str, config: MetricsConfig, computes: bool = False) -> Metrics:
    """For the service of a Serve replica; from now on this process tells them. ``computes``: it should have
    nothing else to do, so others of the machine show all metrics if there are any. One that was built outside
    of Serve keeps them to itself."""
    try:
        replica = serve.get_replica_context().replica_tag
    except RayServeException:
        return Metrics(application, config=config)
    return metrics_of_process(application, replica, config, computes)


def metrics_of_process(
    application: str, replica: str, config: MetricsConfig, computes: bool = False
) -> Metrics:
    """As ``metrics_of_replica``, of an actor that is no replica. Both live as long as the process."""
    metrics, directory = Metrics(application, replica, config), metrics_directory()
    Outlet(directory, application, metrics.text)
    if config.port:
        NodeDoor(directory, config, _OTHERS_FIRST_S if computes else 0.0)
    return metrics


@functools.cache
def metrics_of_routers(application: str, config: MetricsConfig) -> Metrics:
    """Of all routers to ``application`` in this process: there is one for each handle, and one outlet. A
    replica of ``application`` itself, which asks its like, tells no decisions of its own: the outlet of that
    name is its service's."""
    with contextlib.suppress(RayServeException):
        if serve.get_replica_context().app_name == application:
            return Metrics(application, config=config)
    return metrics_of_process(application, f"router-{uuid.uuid4().hex[:8]}", replace(config, port=0))


def metrics_directory() -> Path:
    """Directory in which the processes of this Ray session on this machine tell their metrics; it goes with
    the session."""
    return Path(ray._private.worker._global_node.get_session_dir_path()) / "metrics"
