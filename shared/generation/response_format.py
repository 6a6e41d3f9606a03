"""Says in which form an answer is to be: JSON, by a schema or any."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shared.errors import InvalidRequest

FIELD = "sampling.response_format"
MOST_DEPTH = 64
"""Levels of lists and objects in a schema, itself one."""

_ANY_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class ResponseFormat:
    """The text is one JSON value that ``json_schema`` (JSON Schema, as text) allows; empty: any object.
    What such a schema may hold is known where it is compiled (``shared.engine.decoding.grammars``).

    Raises:
        InvalidRequest: it is not JSON, no object, or nested too deeply.
    """

    json_schema: str = ""

    def __post_init__(self) -> None:
        if _depth(self.schema) > MOST_DEPTH:
            raise _too_deep()

    @cached_property
    def schema(self) -> dict[str, Any]:
        if not self.json_schema:
            return _ANY_OBJECT
        try:
            schema = json.loads(self.json_schema, parse_constant=_no_number)
        except RecursionError:
            raise _too_deep() from None
        except ValueError as error:
            raise InvalidRequest(f"{FIELD}: the schema is not JSON: {error}") from None
        if not isinstance(schema, dict):
            raise InvalidRequest(f"{FIELD}: the schema is no object; give a JSON Schema with a type")
        return schema


def _depth(value: object) -> int:
    """Level by level, so that nothing is too deep to be looked at."""
    depth, level = 0, [value]
    while level:
        inner = [one for one in level if isinstance(one, dict | list)]
        level = [part for one in inner for part in (one.values() if isinstance(one, dict) else one)]
        depth += bool(inner)
    return depth


def _too_deep() -> InvalidRequest:
    return InvalidRequest(
        f"{FIELD}: the schema has more than {MOST_DEPTH} levels; name inner schemas in $defs and refer to "
        "them"
    )


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")
