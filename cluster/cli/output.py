"""Gives every command `--output json|text`: what it tells people, or one JSON document for programs."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, Protocol, Self, TypeVar

import click

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
JSON, TEXT = "json", "text"
_ASKED_FOR_JSON = "kvquilt.json"


class Speaking(Protocol):
    """The session of a command."""

    def for_programs(self) -> Self: ...


def output_option(with_flag: bool = False, help: str = "") -> Callable[[CommandT], CommandT]:
    """The command's session knows what was chosen (``Session.as_json``, ``Session.tell``). ``with_flag``:
    `--json` says the same."""
    shown = help or "For people (text), or one JSON document on standard output (json)."
    output = click.option(
        "--output",
        type=click.Choice([JSON, TEXT]),
        default=TEXT,
        show_default=True,
        is_eager=True,  # what else is wrong is told in the form that was asked for
        expose_value=False,
        callback=lambda ctx, _, value: _choose(ctx, value == JSON),
        help=f"{shown} Errors are JSON on standard error then.",
    )
    flag = click.option(
        "--json",
        "json_flag",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=lambda ctx, _, value: _choose(ctx, value),
        help="The same as --output json.",
    )

    def decorate(command: CommandT) -> CommandT:
        return output(flag(command)) if with_flag else output(command)

    return decorate


def json_asked_for(ctx: click.Context, args: Sequence[str]) -> bool:
    """``args``: of the command, where they could not even be parsed."""
    pairs = itertools.pairwise(args)
    return bool(ctx.meta.get(_ASKED_FOR_JSON)) or f"--output={JSON}" in args or ("--output", JSON) in pairs


def error_json(code: str, message: str, retryable: bool = False) -> str:
    return as_json({"error": {"code": code, "message": message, "retryable": retryable}}, indent=None)


def as_json(value: object, indent: int | None = 2) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, default=_plain)


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON")


def _choose(ctx: click.Context, chosen: bool) -> None:
    session: Speaking | None = ctx.obj
    if chosen and session is not None:
        ctx.meta[_ASKED_FOR_JSON] = True
        ctx.obj = session.for_programs()
