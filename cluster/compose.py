"""The composition root: from one ``quilt.yaml`` to five Ray Serve applications, or six with a selector, or
fewer where another cluster serves some.

The same dictionary is what ``serve deploy`` takes (``python -m cluster.compose --config quilt.yaml >
serve.yaml``), what the Helm chart renders, and what the local supervisor deploys, so that a laptop and a
cluster run the same thing.

Serve builds an application anew, and replaces all its replicas, when its ``args`` change. Hence each is given
only what concerns it, and what Serve can change in place stands in ``deployments``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cluster.config import DEPLOYED, PROMPTED, SHARING, QuiltConfig, load_quilt
from cluster.models.names import served_name
from services.gateway.config import HttpConfig
from shared.config import merge_env, read_yaml
from shared.deployment import serve_options
from shared.errors import KvquiltError
from shared.surface import PUBLIC

APPLICATIONS = ("kv_store", "retrieval", "generator", "selector", "ingestion", "gateway")
_CALL_THE_OTHERS = ("ingestion", "gateway")
_OVER_HTTP = "gateway"
_TELL_KV_CONTEXT = ("gateway", "generator")
"""They tell what was made under another one."""
SERVICERS = {
    "kv_store": ("KvStore",),
    "retrieval": ("Retrieval",),
    "generation": ("Generation",),
    "selection": ("Selection",),
    "ingest": ("Ingest",),
    "rag": ("Rag", "Admin"),
}
"""What services of another cluster may call, whole."""


def serve_config(values: Mapping[str, Any], config: QuiltConfig) -> dict[str, Any]:
    """Builds what ``ray.serve.schema.ServeDeploySchema`` reads. Every application has a route prefix of its
    own: without one Serve hides it from gRPC as well. The gateway answers HTTP: its prefix is that of all the
    others.

    ``values``: the settings as the operator wrote them; ``config``: the same, loaded."""
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": config.http_host, "port": config.http_port},
        "grpc_options": {
            "port": config.grpc_port,
            "grpc_servicer_functions": list(servicer_functions(config.internal_calls)),
            "enable_reflection": True,
        },
        "logging_config": {
            "encoding": config.log.format.upper(),
            "log_level": config.log.level,
            "enable_access_log": False,
        },
        "applications": [_application(name, values, config) for name in deployed(config)],
    }


def deployed(config: QuiltConfig) -> tuple[str, ...]:
    """In the order in which they are started; those that another cluster serves are not."""
    here = (name for name in APPLICATIONS if name not in config.addresses)
    return tuple(name for name in here if name != "selector" or config.selector.model)


def servicer_functions(internal_calls: bool = False) -> tuple[str, ...]:
    """Returns what registers all that Serve's proxies offer: the public RPCs, or those of the services,
    too."""
    if not internal_calls:
        return tuple(f"shared.surface.add_{name}" for name in PUBLIC)
    return tuple(
        f"protos.kvquilt.v1.{module}_pb2_grpc.add_{service}Servicer_to_server"
        for module, services in SERVICERS.items()
        for service in services
    )


def application_args(name: str, values: Mapping[str, Any], config: QuiltConfig) -> dict[str, Any]:
    """Returns what ``cluster.applications`` builds ``name`` from: settings a replica cannot change while it
    lives."""
    args: dict[str, Any] = {"data_dir": config.data_dir}
    if values.get("model"):
        args["model"] = config.model
    shared_sections = (*DEPLOYED, "limits", "auth", "audit")
    args |= {shared: values[shared] for shared in shared_sections if values.get(shared)}
    if values.get("prompt") and name in PROMPTED:
        args["prompt"] = values["prompt"]
    if values.get("sharing_scopes") and name in SHARING:
        args["sharing_scopes"] = values["sharing_scopes"]
    given = values.get(name) or {}
    section = {key: value for key, value in given.items() if key != "deployment"}
    # decided here: a node that knows a model with an auxiliary need not know what is deployed
    if name in _CALL_THE_OTHERS:
        section["selector"] = getattr(config, name).selector
        if config.addresses:
            section["addresses"] = config.addresses
    if name in _TELL_KV_CONTEXT and (values.get("ingestion") or {}).get("kv_context"):
        section.setdefault("kv_context", getattr(config, name).kv_context.value)
    if name == "gateway" and config.gateway.names_chunks:
        section.setdefault("names_chunks", True)
    if name == "generator":
        section["selector"] = {
            **section.get("selector", {}),
            "application": config.generator.selector.application,
        }
    # its name is the operator's, not that of the directory that it was found in
    if config.metrics.model_name != served_name(config.model):
        args["metrics"] = {**args.get("metrics", {}), "model_name": config.metrics.model_name}
    if name == _OVER_HTTP and (http := _names_over_http(config)):
        section["http"] = {**section.get("http", {}), **http}
    deployment = given.get("deployment") or {}
    if kept := {shared: deployment[shared] for shared in DEPLOYED if deployment.get(shared)}:
        section["deployment"] = kept
    return args | ({name: section} if section else {})


def _names_over_http(config: QuiltConfig) -> dict[str, str]:
    """Those that the gateway would not make of what it is given."""
    names = config.gateway.http
    others = {"model": served_name(config.model), "embedder": HttpConfig().embedder}
    return {key: getattr(names, key) for key, own in others.items() if getattr(names, key) != own}


def _application(name: str, values: Mapping[str, Any], config: QuiltConfig) -> dict[str, Any]:
    return {
        "name": name,
        "route_prefix": "/" if name == _OVER_HTTP else f"/{name}",
        "import_path": f"cluster.applications:{name}",
        "args": application_args(name, values, config),
        "deployments": [{"name": name, **serve_options(getattr(config, name))}],
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cluster.compose", description="Print the Ray Serve config of a quilt.yaml."
    )
    parser.add_argument("--config", required=True, help="quilt.yaml; '-' reads standard input")
    path = parser.parse_args(argv).config
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        values = merge_env(read_yaml(text, path), os.environ)
        composed = serve_config(values, load_quilt(values, os.environ))
    except (KvquiltError, OSError) as error:
        print(f"compose: {error}", file=sys.stderr)
        return 1
    yaml.safe_dump(composed, sys.stdout, sort_keys=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
