"""Attributes of a file in a vector store, as metadata of its document, which is text alone; and filters by
them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from shared.errors import InvalidRequest
from shared.search import Filter, FilterOp, check_metadata

TYPES_KEY = "attribute_types"
"""The key of the metadata that says which values were no text."""
MAX_ATTRIBUTES, MAX_KEY_CHARS, MAX_VALUE_CHARS = 16, 64, 512
Attribute = str | float | bool
Attributes = Mapping[str, Attribute]

_OPS = {"eq": FilterOp.EQ, "ne": FilterOp.NE, "in": FilterOp.IN}
_COMPOUND = ("and", "or")
_DEEPEST = 8


def metadata_of(attributes: Attributes) -> dict[str, str]:
    """
    Raises:
        InvalidRequest: names what cannot be an attribute.
    """
    if len(attributes) > MAX_ATTRIBUTES:
        raise InvalidRequest(f"attributes: has {len(attributes)} keys, at most {MAX_ATTRIBUTES} are possible")
    for key, value in attributes.items():
        if not 1 <= len(key) <= MAX_KEY_CHARS or key == TYPES_KEY:
            raise InvalidRequest(
                f"attributes: {key[:80]!r} cannot be a key of 1 to {MAX_KEY_CHARS} characters"
            )
        if len(spelt(value)) > MAX_VALUE_CHARS:
            raise InvalidRequest(f"attributes.{key}: has more than {MAX_VALUE_CHARS} characters")
    types = {key: _type_of(value) for key, value in attributes.items() if not isinstance(value, str)}
    found = {key: spelt(value) for key, value in attributes.items()}
    check_metadata(found)
    return found | ({TYPES_KEY: json.dumps(types, sort_keys=True)} if types else {})


def attributes_of(metadata: Mapping[str, str]) -> dict[str, Attribute]:
    """Of a document, whoever gave it its metadata."""
    try:
        types = json.loads(metadata.get(TYPES_KEY, "{}"))
    except ValueError:  # it was somebody else's key
        types = {}
    types = types if isinstance(types, dict) else {}
    return {key: _read(value, types.get(key)) for key, value in metadata.items() if key != TYPES_KEY}


def spelt(value: Attribute) -> str:
    """As metadata has it: equal numbers alike."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value if isinstance(value, str) else json.dumps(value)


def filters_of(asked: Any, where: str = "filters") -> tuple[Filter, ...]:
    """OpenAI's filters as conditions that must all hold.

    Raises:
        InvalidRequest: names what is none, or what the index cannot do.
    """
    return tuple(_conditions(asked, where, 0))


def _conditions(asked: Any, where: str, depth: int) -> Iterator[Filter]:
    if not isinstance(asked, Mapping):
        raise InvalidRequest(f"{where}: must be an object with a type")
    kind = asked.get("type")
    if kind in _COMPOUND:
        yield from _joined(asked, where, depth)
        return
    if kind in ("gt", "gte", "lt", "lte"):
        raise InvalidRequest(f"{where}.type: {kind!r} is not supported; eq, ne, in, nin, and are")
    if kind not in (*_OPS, "nin"):
        raise InvalidRequest(f"{where}.type: {str(kind)[:80]!r} is not one of eq, ne, in, nin, and")
    if unknown := set(asked) - {"type", "key", "value"}:
        raise InvalidRequest(f"{where}.{min(map(str, unknown))}: is not supported; leave it out")
    key, value = asked.get("key"), asked.get("value")
    if not isinstance(key, str) or not key:
        raise InvalidRequest(f"{where}.key: is required, the name of an attribute")
    if kind in ("in", "nin"):
        if not isinstance(value, list) or not value:
            raise InvalidRequest(f"{where}.value: must be a list that is not empty")
        values = tuple(_spelt(one, f"{where}.value[{i}]") for i, one in enumerate(value))
        if kind == "in":
            yield Filter(key, FilterOp.IN, values)
        else:
            yield from (Filter(key, FilterOp.NE, (one,)) for one in values)
        return
    yield Filter(key, _OPS[kind], (_spelt(value, f"{where}.value"),))


def _joined(asked: Mapping[str, Any], where: str, depth: int) -> Iterator[Filter]:
    parts = asked.get("filters")
    if not isinstance(parts, list) or not parts:
        raise InvalidRequest(f"{where}.filters: must be a list that is not empty")
    if depth == _DEEPEST:
        raise InvalidRequest(f"{where}: is nested deeper than {_DEEPEST} levels")
    inner = [tuple(_conditions(part, f"{where}.filters[{i}]", depth + 1)) for i, part in enumerate(parts)]
    if asked["type"] == "and" or len(inner) == 1:
        yield from (condition for conditions in inner for condition in conditions)
        return
    singles = [conditions[0] for conditions in inner if len(conditions) == 1]
    same_key = len({one.field for one in singles}) == 1 and len(singles) == len(inner)
    if not same_key or any(one.op not in (FilterOp.EQ, FilterOp.IN) for one in singles):
        raise InvalidRequest(
            f"{where}.type: 'or' is supported between eq and in of one key alone; search once for each"
        )
    yield Filter(singles[0].field, FilterOp.IN, tuple(value for one in singles for value in one.values))


def _spelt(value: Any, where: str) -> str:
    if not isinstance(value, (str, int, float)):
        raise InvalidRequest(f"{where}: must be text, a number, true or false")
    return spelt(value)


def _type_of(value: Attribute) -> str:
    return "boolean" if isinstance(value, bool) else "number"


def _read(value: str, kind: object) -> Attribute:
    if kind == "boolean":
        return value == "true"
    if kind == "number":
        try:
            return float(value) if not value.lstrip("-").isdigit() else int(value)
        except ValueError:
            return value
    return value
