"""Checks that a value is in its range, naming the field."""

from __future__ import annotations

from shared.errors import InvalidRequest


def check_range(name: str, value: object, ok: bool, rule: str) -> None:
    if not ok:
        raise InvalidRequest(f"{name}: {value!r} is out of range; it must be {rule}")
