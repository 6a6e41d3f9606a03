"""Writes what a ``quilt.yaml`` may hold into the chart's schema, so that Helm refuses a wrong setting before
anything is installed: `python -m cluster.values_schema helm/kvquilt/values.schema.json`."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any

from cluster.config import QuiltConfig
from shared.config import choices_of
from shared.deployment import DeploymentConfig

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}
# The services check their ranges themselves; on a cluster these are Serve's, and never reach them.
_AT_LEAST = {
    "num_replicas": 0,
    "max_replicas": 0,
    "max_ongoing_requests": 1,
    "max_queued_requests": -1,
    "target_ongoing_requests": 1,
    "upscale_delay_s": 0,
    "downscale_delay_s": 0,
    "num_cpus": 0,
    "num_gpus": 0,
    "drain_s": 0,
    "scale_down_s": 0,
}


def quilt_schema(schema: Any = QuiltConfig) -> dict[str, Any]:
    """JSON schema of a configuration in which everything may be left out."""
    hints = typing.get_type_hints(schema, include_extras=True)
    fields = {field.name: _value(hints[field.name]) for field in dataclasses.fields(schema)}
    if schema is DeploymentConfig:
        for name, minimum in _AT_LEAST.items():
            fields[name] |= {"minimum": minimum}
    return {"type": "object", "additionalProperties": False, "properties": fields}


def _value(hint: Any) -> dict[str, Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if choices := choices_of(hint):
        return {"enum": list(choices)}
    if origin in (typing.Union, types.UnionType):
        (value,) = (_value(a) for a in args if a is not type(None))
        return value | {"type": [value["type"], "null"]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _value(args[1])}
    if origin is tuple:
        return {"type": "array", "items": _value(args[0])}
    return quilt_schema(hint) if dataclasses.is_dataclass(hint) else {"type": _PLAIN[hint]}


def with_quilt(values_schema: dict[str, Any]) -> dict[str, Any]:
    """The chart's schema, its ``config`` renewed."""
    return values_schema | {"properties": values_schema["properties"] | {"config": quilt_schema()}}


def main(path: Path) -> None:
    path.write_text(
        json.dumps(with_quilt(json.loads(path.read_text(encoding="utf-8"))), indent=2) + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
