"""Durations as operators write them."""

from __future__ import annotations

import re
from typing import Any

import click

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Duration(click.ParamType[float]):
    """Seconds, from "90s", "30m", "1h" or "2d"; 0 needs no unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float) or value == "0":
            return float(value)
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", str(value).strip())
        if not found:
            self.fail(f"{value!r} is not a duration; write 90s, 30m, 1h or 2d", param, ctx)
        return float(found[1]) * _UNITS[found[2]]
