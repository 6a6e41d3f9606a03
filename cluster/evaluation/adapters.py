"""Finds the adapters that are evaluated: by the names that the model is served with, or by directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from shared.errors import InvalidRequest


def adapter_places(wanted: Iterable[str], served: Mapping[str, str]) -> dict[str, str]:
    """Directories by name; of one that is not ``served`` its folder's.

    Raises:
        InvalidRequest: neither is there; or two have one name.
    """
    found: dict[str, str] = {}
    for one in wanted:
        name, place = (one, served[one]) if one in served else (Path(one).name, one)
        if not Path(place).is_dir():
            there = ", ".join(served) or "none is named there"
            raise InvalidRequest(
                f"--adapter: {one!r} is none of generator.engine.adapters ({there}), nor a directory"
            )
        if name in found:
            raise InvalidRequest(f"--adapter: two are called {name!r}; rename a folder")
        found[name] = place
    return found
