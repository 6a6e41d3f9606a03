"""The applications as Ray Serve builds them on a cluster: ``cluster.applications:<name>`` in a Serve
configuration.

An application is given its part of ``quilt.yaml``; what is not said there comes from the node: ``KVQUILT_*``
of its environment (a Milvus token from a secret), and the ``quilt.yaml`` of the model's directory.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from cluster.config import load_quilt, under
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


def kv_store(args: dict[str, Any]) -> serve.Application:
    return build("kv_store", args)


def retrieval(args: dict[str, Any]) -> serve.Application:
    return build("retrieval", args)


def generator(args: dict[str, Any]) -> serve.Application:
    return build("generator", args)


def selector(args: dict[str, Any]) -> serve.Application:
    return build("selector", args)


def ingestion(args: dict[str, Any]) -> serve.Application:
    return build("ingestion", args)


def gateway(args: dict[str, Any]) -> serve.Application:
    return build("gateway", args)
