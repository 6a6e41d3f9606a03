"""Options of `kvquilt ask` that say how the context's KV is reused, and what of it is computed anew."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

import click

from shared.errors import InvalidRequest
from shared.generation.modes import Ape, GoesBy, Recompute, ReuseMode
from shared.generation.orders import ASKED_MODES, Auto, Reuse
from shared.generation.selection import Grouping, Reading

FOREST_MODES = tuple(
    mode
    for mode in ASKED_MODES
    if isinstance(mode, Auto) or not (mode.needs_question or mode.row.goes_by is GoesBy.TOKENS)
)
NamedT = TypeVar("NamedT", bound=StrEnum)
CommandT = TypeVar("CommandT", bound=Callable[..., Any])


class OneOf(click.Choice[NamedT]):
    """A member, by its value."""

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        return str(choice)


ADAPTER_OPTION = click.option(
    "--adapter",
    default="",
    metavar="NAME",
    help="What question and answer, and tokens computed anew, go with (docs/adapters.md); none: the model "
    "alone. Default: as configured.",
)
_OPTIONS = (
    click.option(
        "--reuse",
        type=OneOf(ASKED_MODES),
        help="What is done with the context. "
        + "".join(f"{mode}: {mode.row.about}. " for mode in ReuseMode)
        + "auto: what the model's verdict says.",
    ),
    click.option(
        "--recompute-ratio",
        type=float,
        metavar="0..1",
        help="The part of the tokens. Default 0.2.",
    ),
    click.option(
        "--recompute-tokens",
        default="",
        metavar="1,5,9",
        help="Of --reuse tokens: which ones, counted from 0 over all chunks in order.",
    ),
    click.option(
        "--grouping",
        type=OneOf(Grouping),
        help="Of cacheclip: how single tokens become runs. Windows of 8, best first, until the ratio "
        "is met (budget); those with 5 "
        "of the best tokens, in steps of 8 (paper) or of 1 (sliding).",
    ),
    click.option(
        "--reading",
        type=OneOf(Reading),
        help="Of cacheclip: the small model sees all chunks at once (stitched), or one at a time (each).",
    ),
    click.option(
        "--ape-temperature",
        type=float,
        help="Of ape: below 1 its attention is sharper. Default 0.9.",
    ),
    click.option("--ape-scale", type=float, help="Of ape: below 1 chunks get less of it. Default 0.9."),
    ADAPTER_OPTION,
    click.option(
        "--no-prefix",
        is_flag=True,
        help="Nothing in front of the chunks, for comparison; their KV is computed first.",
    ),
    click.option(
        "--explain",
        is_flag=True,
        help="Show the chunks, what of them was computed anew and why, and what choosing it took.",
    ),
)


def reuse_options(command: CommandT) -> CommandT:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def reuse_of(options: dict[str, Any]) -> Reuse:
    """
    Raises:
        InvalidRequest: tokens that are no numbers, or for another mode; a number out of its range.
    """
    mode = options["reuse"]
    listed, usual = options["recompute_tokens"], Ape()
    row = mode.row if isinstance(mode, ReuseMode) else None
    if listed and (row is None or row.goes_by is not GoesBy.TOKENS):
        raise InvalidRequest("--recompute-tokens belongs to --reuse tokens; give that too")
    try:
        tokens = tuple(int(part) for part in listed.split(",")) if listed else ()
    except ValueError:
        raise InvalidRequest(f"--recompute-tokens: {listed!r} is no list of numbers such as 1,5,9") from None
    temperature, scale = options["ape_temperature"], options["ape_scale"]
    seed = options["seed"] if row is not None and row.seeded else 0
    return Reuse(
        mode,
        Recompute(options["recompute_ratio"], tokens, seed),
        Ape(
            usual.temperature if temperature is None else temperature, usual.scale if scale is None else scale
        ),
        options["grouping"],
        options["reading"],
        options["adapter"] or "",
    )
