"""Settings: defaults < YAML < environment, typed by frozen dataclasses, read once.

A dataclass is the schema. ``load`` builds it from plain mappings and names the field of whatever is wrong.
Environment variables override single fields: ``KVQUILT_GENERATOR__DTYPE=float32`` sets ``generator.dtype``.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import difflib
import enum
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import yaml

from shared.errors import ConfigError, InvalidRequest

ENV_PREFIX = "KVQUILT_"
API_KEY = "KVQUILT_API_KEY"
"""A caller's, who is no setting of what he calls."""
ConfigT = TypeVar("ConfigT")


def load(schema: type[ConfigT], values: Mapping[str, Any], path: str = "") -> ConfigT:
    """Builds ``schema`` from ``values``; nested dataclasses from nested mappings. A dataclass checks its own
    ranges in ``__post_init__`` by raising ``ValueError("field: what is wrong")``, or ``InvalidRequest`` where
    it is a value elsewhere, too.

    Raises:
        ConfigError: unknown key, wrong type or bad value, with the dotted name of the field.
    """
    hints = typing.get_type_hints(schema, include_extras=True)
    fields = {f.name: f for f in dataclasses.fields(schema)}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            hint = f"did you mean {path + near[0]!r}?" if near else f"known here: {', '.join(fields)}"
            raise ConfigError(f"{path}{key}: unknown setting; {hint}")
    built = {name: _convert(hints[name], value, path + name) for name, value in values.items()}
    missing = [f.name for f in fields.values() if f.name not in built and _required(f)]
    if missing:
        raise ConfigError(f"{path}{missing[0]}: a value is required")
    try:
        return schema(**built)
    except ConfigError:
        raise
    except (ValueError, InvalidRequest) as error:
        raise ConfigError(f"{path}{error}") from None


def read_yaml(text: str, source: str) -> dict[str, Any]:
    """
    Raises:
        ConfigError: ``text`` is not a YAML mapping.
    """
    values = _read(text, source)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{source}: expected a mapping of settings")
    return values


def merge_env(values: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """``values`` with the overrides of ``environ``; their text is read as YAML, so numbers and lists work.

    Raises:
        ConfigError: a text is not YAML; names the variable.
    """
    merged = copy.deepcopy(dict(values))
    for name, text in sorted(environ.items()):
        if not name.startswith(ENV_PREFIX) or name == API_KEY:
            continue
        *sections, key = name[len(ENV_PREFIX) :].lower().split("__")
        node = merged
        for section in sections:
            node = node.setdefault(section, {})
            if not isinstance(node, dict):
                raise ConfigError(f"{name}: {section} is not a section")
        node[key] = _read(text, name, quotes=False)
    return merged


def _read(text: str, source: str, quotes: bool = True) -> Any:
    """``quotes``: an error may tell what stands there; variables hold secrets."""
    try:
        return yaml.safe_load(text)
    except RecursionError:
        raise ConfigError(f"{source}: not valid YAML: nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # such as a thirteenth month
        told = f": {error}" if quotes else ""
        raise ConfigError(f"{source}: not valid YAML{told}; put text into quotes") from None


def to_dict(config: Any) -> dict[str, Any]:
    """Plain values (JSON-able) that ``load`` turns back into an equal object."""
    values = json.dumps(dataclasses.asdict(config), default=lambda member: member.value)
    return typing.cast(dict[str, Any], json.loads(values))


def choices_of(hint: Any) -> tuple[Any, ...]:
    """The values that a field may have: of a ``Literal`` its values, of an enum or a union of enums the
    members, of an ``Annotated`` type the members that it is annotated with (a tuple); of any other type
    nothing."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return args
    if origin is typing.Annotated:
        return tuple(args[1])
    kinds = args if origin in (typing.Union, types.UnionType) else (hint,)
    if all(isinstance(kind, enum.EnumMeta) for kind in kinds):
        return tuple(member for kind in kinds for member in kind)
    return ()


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if choices := choices_of(hint):
        for choice in choices:
            if choice == value:
                return choice
        raise ConfigError(f"{path}: {value!r} is not one of {', '.join(map(str, choices))}")
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _convert(next(a for a in args if a is not type(None)), value, path)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}: expected a section, got {value!r}")
        return load(typing.cast(type, hint), value, path + ".")
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{path}: expected a list, got {value!r}")
        return tuple(_convert(args[0], v, f"{path}[{i}]") for i, v in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}: expected a mapping, got {value!r}")
        return {str(k): _convert(args[1], v, f"{path}.{k}") for k, v in value.items()}
    if hint is str and isinstance(value, datetime.date):  # YAML takes one for more than its text
        return value.isoformat()
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and (
        not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool)
    ):
        raise ConfigError(f"{path}: expected {hint.__name__}, got {value!r}")
    return value


def check_least(config: object, least: float, *names: str) -> None:
    """For ``__post_init__``. A setting that is None passes.

    Raises:
        ValueError: a setting is less; names it.
    """
    for name in names:
        value = getattr(config, name)
        if value is not None and not value >= least:  # True for NaN
            wanted = f"be at least {least}" if least else "not be negative"
            raise ValueError(f"{name}: must {wanted}, got {value}")


def check_above_zero(config: object, *names: str) -> None:
    """As ``check_least``, for settings that may be as small as one likes, but not 0."""
    for name in names:
        if not getattr(config, name) > 0:
            raise ValueError(f"{name}: must be above 0, got {getattr(config, name)}")
