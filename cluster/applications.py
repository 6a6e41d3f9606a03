"""The applications as Ray Serve builds them on a cluster: ``cluster.applications:<name>`` in a Serve
configuration.

An application is given its part of ``quilt.yaml``; what is not said there comes from the node: ``KVQUILT_*``
of its environment (a Milvus token from a secret), and the ``quilt.yaml`` of the model's directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cluster.config import load_quilt
from cluster.models.settings import under
from services.generator.router_options import router_options
from shared.config import merge_env
from shared.deployment import serve_options

if TYPE_CHECKING:
    from ray import serve

REPLICAS = {
    "kv_store": "KvStoreFront",
    "retrieval": "Retrieval",
    "generator": "GenerationApp",
    "selector": "SelectionApp",
    "ingestion": "Ingestion",
    "gateway": "Gateway",
}
"""The class of each application's replicas, in ``services/<application>/app.py``. Serve is given its name:
only replicas import it, with torch and all else that they compute with."""


def build(name: str, args: dict[str, Any], **more: Any) -> serve.Application:
    """``args``: shared settings and the section ``name`` of a ``quilt.yaml``. A model that is not there is
    nothing to most of them: those that need it say so by their health. ``more``: keyword arguments of
    ``ray.serve.deployment``, beyond those of the section.

    Raises:
        ConfigError: names the setting.
    """
    config = load_quilt(under(args, merge_env({}, os.environ)), {}, resolve=str)
    return of_section(name, getattr(config, name), **more)


def of_section(name: str, section: Any, **more: Any) -> serve.Application:
    """``section``: the settings of the application; ``more`` as for ``build``."""
    from ray import serve  # reading settings does without

    options = serve_options(section) | (router_options(section) if name == "generator" else {})
    deployment = serve.deployment(name=name, **options, **more)(f"services.{name}.app.{REPLICAS[name]}")
    app: serve.Application = deployment.bind(section)
    return app


def _built(name: str) -> Callable[[dict[str, Any]], serve.Application]:
    return lambda args: build(name, args)


kv_store = _built("kv_store")
retrieval = _built("retrieval")
generator = _built("generator")
selector = _built("selector")
ingestion = _built("ingestion")
gateway = _built("gateway")
