"""Tries a JSON Schema in a process of its own, which may be killed: the grammar library proves that a schema
allows anything at all by searching, and for some patterns that search does not end.

Run as a program: it reads ``{"schema", "options", "cpu_s", "memory_bytes"}`` and prints ``{"path", "error"}``, both
empty if the schema is a grammar. It imports nothing of this project, so that it starts in no time.
"""  # noqa: E501

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any] | bool

_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
_MAPPINGS = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def parts(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """The schemas right inside a schema, each with its path from there."""
    if isinstance(schema, bool):
        return
    found: list[tuple[str, Any]] = []
    for key in _MAPPINGS:
        inner = schema.get(key)
        named = inner.items() if isinstance(inner, dict) else ()
        found += [(f"{key}/{_escaped(name)}", one) for name, one in named]
    for key in _LISTS:
        inner = schema.get(key)
        found += [(f"{key}/{i}", one) for i, one in enumerate(inner)] if isinstance(inner, list) else []
    found += [(key, schema[key]) for key in _ONE if key in schema]
    yield from ((path, one) for path, one in found if isinstance(one, dict | bool))


def all_parts(schema: Schema) -> dict[str, Schema]:
    """The schema and all inside it, by path (a JSON pointer), those outside first."""
    found: dict[str, Schema] = {}
    todo = [("", schema)]
    while todo:
        path, one = todo.pop()
        found[path] = one
        todo += [(f"{path}/{inner}", part) for inner, part in parts(one)]
    return found


def foreign(by_path: dict[str, Schema]) -> tuple[str, str] | None:
    """The first schema that refers out of the document, or gives orders to the library."""
    for path, schema in by_path.items():
        if isinstance(schema, bool):
            continue
        for key in _REFERENCES:
            if not str(schema.get(key, "#")).startswith("#"):
                return (
                    f"{path}/{key}",
                    "refers to another document, and nothing is fetched; put it into $defs",
                )
        if "x-guidance" in schema:
            return f"{path}/x-guidance", "is not supported; leave it out"
    return None


def ends(by_path: dict[str, Schema]) -> bool:
    """Whether some text that ends may satisfy the document. What can end is found from what has no parts
    on."""
    ending: set[str] = set()
    before = -1
    while len(ending) > before:
        before = len(ending)
        for path in reversed(by_path):
            if path not in ending and _can_end(by_path[path], path, ending, by_path):
                ending.add(path)
    return "" in ending


def _can_end(schema: Schema, path: str, ending: set[str], by_path: dict[str, Schema]) -> bool:
    """As far as is known by now."""
    if isinstance(schema, bool):
        return True  # False is told of by the library
    if "const" in schema or "enum" in schema:
        return True
    target = str(schema.get("$ref", "#"))[1:]
    if "$ref" in schema and target in by_path and target not in ending:
        return False
    if not all(f"{path}/allOf/{i}" in ending for i in _places(schema, "allOf")):
        return False
    for key in ("anyOf", "oneOf"):
        ways = _places(schema, key)
        if ways and not any(f"{path}/{key}/{i}" in ending for i in ways):
            return False
    named = schema.get("type", [])
    types = set(map(str, named)) if isinstance(named, list) else {str(named)}
    if not types or types - {"object", "array"}:
        return True
    return ("object" in types and _object_can_end(schema, path, ending)) or (
        "array" in types and _array_can_end(schema, path, ending)
    )


def _object_can_end(schema: dict[str, Any], path: str, ending: set[str]) -> bool:
    required, named = schema.get("required"), schema.get("properties")
    if not isinstance(required, list) or not isinstance(named, dict):
        return True
    return all(f"{path}/properties/{_escaped(name)}" in ending for name in required if name in named)


def _array_can_end(schema: dict[str, Any], path: str, ending: set[str]) -> bool:
    least, first = schema.get("minItems", 0), len(_places(schema, "prefixItems"))
    if not isinstance(least, int | float):
        return True
    of_first = all(f"{path}/prefixItems/{i}" in ending for i in range(min(first, int(least))))
    of_rest = least <= first or not isinstance(schema.get("items"), dict) or f"{path}/items" in ending
    return of_first and of_rest


def _places(schema: dict[str, Any], key: str) -> range:
    inner = schema.get(key)
    return range(len(inner) if isinstance(inner, list) else 0)


def _escaped(name: object) -> str:
    return str(name).replace("~", "~0").replace("/", "~1")


def refused(schema: Schema, options: dict[str, Any]) -> tuple[str, str] | None:
    """The innermost schema that the library refuses, and why: of one inside another each is tried, with
    the document around it for what it refers to."""
    from llguidance import LLMatcher

    def error_of(document: Schema) -> str:
        try:
            grammar = LLMatcher.grammar_from_json_schema(document, overrides=options)  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:  # half of a surrogate pair
            return str(error)
        is_error, said = LLMatcher.validate_grammar_with_warnings(grammar)
        return said[0] if is_error else ""

    path, error = "", error_of(schema)
    if not error:
        return None
    assert isinstance(schema, dict)
    inside: Schema = schema
    found = True
    while found:
        found = False
        for inner, part in parts(inside):
            # what the document says of itself is not said of its part
            around: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
            alone = {**around, **part} if isinstance(part, dict) else part
            says = error_of(alone)
            if says and "does not exist" not in says:
                path, error, inside, found = f"{path}/{inner}", says, part, True
                break
    return path, error


def tried(schema: Schema, options: dict[str, Any]) -> tuple[str, str]:
    """Finds where the schema is wrong, and why; both empty: it is not."""
    by_path = all_parts(schema)
    if (wrong := foreign(by_path)) is not None:
        return wrong
    if not ends(by_path):
        return "", "no text that ends satisfies it: it requires itself inside itself; make that optional"
    return refused(schema, options) or ("", "")


def main() -> None:
    asked = json.load(sys.stdin)
    seconds, num_bytes = int(asked["cpu_s"]), int(asked["memory_bytes"])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
    path, error = tried(asked["schema"], asked["options"])
    json.dump({"path": path, "error": error}, sys.stdout)


if __name__ == "__main__":
    main()
