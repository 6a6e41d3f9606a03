"""Reads JSON that others have written, of which not everything can be worked with."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

HALVED = "holds half of a surrogate pair, which is no character; remove it"
_HALF = re.compile("[\ud800-\udfff]")


def parse_json(text: str) -> Any:
    """
    Raises:
        ValueError: it is no JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def halved_field(values: Mapping[str, Any]) -> str:
    """Returns the first field that holds half of a surrogate pair, which JSON can spell and no tokenizer
    reads; empty: none does."""
    return next((field for field, value in values.items() if not _is_whole([field, value])), "")


def _is_whole(left: list[Any]) -> bool:
    while left:
        one = left.pop()
        if isinstance(one, list):
            left += one
        elif isinstance(one, dict):
            left += [*one, *one.values()]
        elif isinstance(one, str) and _HALF.search(one):
            return False
    return True
