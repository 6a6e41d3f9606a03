"""The applications as Ray Serve builds them on a cluster: ``cluster.applications:<name>`` in a Serve
configuration.

An application is given its part of ``quilt.yaml``; what is not said there comes from the node: ``KVQUILT_*``
of its environment (a Milvus token from a secret), and the ``quilt.yaml`` of the model's directory.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cluster.config import load_quilt
from cluster.models.settings import under
from shared.config import merge_env, to_dict

if TYPE_CHECKING:
    from ray import serve


def build(name: str, args: dict[str, Any]) -> serve.Application:
    """``args``: shared settings and the section ``name`` of a ``quilt.yaml``. A model that is not there is
    nothing to most of them: those that need it say so by their health.

    Raises:
        ConfigError: names the setting.
    """
    config = load_quilt(under(args, merge_env({}, os.environ)), {}, resolve=str)
    app: serve.Application = importlib.import_module(f"services.{name}.app").build(
        to_dict(getattr(config, name))
    )
    return app


def _built(name: str) -> Callable[[dict[str, Any]], serve.Application]:
    return lambda args: build(name, args)


kv_store = _built("kv_store")
retrieval = _built("retrieval")
generator = _built("generator")
selector = _built("selector")
ingestion = _built("ingestion")
gateway = _built("gateway")
