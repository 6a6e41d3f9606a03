"""Rules for the names that principals are made of: they stand in logs, paths and expressions."""

from __future__ import annotations

import re

PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SHOWN = 80
_MOST_CHARS = 128
_VISIBLE = re.compile(rf"[!-~]{{1,{_MOST_CHARS}}}")


def check_plain(field: str, value: str) -> str:
    """
    Raises:
        ValueError: names ``field`` and the rule for tenants and collections.
    """
    if not PLAIN.fullmatch(value):
        raise ValueError(
            f"{field}: {value[:_SHOWN]!r} is not a name (1 to 64 letters, digits, '-', '_' or '.', "
            "beginning with a letter or digit)"
        )
    return value


def check_principal_name(field: str, value: str) -> str:
    """
    Raises:
        ValueError: it is no word that a log can hold.
    """
    return _check_visible(field, value)


def check_group(field: str, value: str) -> str:
    """
    Raises:
        ValueError: it is no word; groups may hold more than letters, such as ``/staff`` or an address.
    """
    return _check_visible(field, value)


def _check_visible(field: str, value: str) -> str:
    if not _VISIBLE.fullmatch(value):
        raise ValueError(
            f"{field}: {value[:_SHOWN]!r} is no word of 1 to {_MOST_CHARS} visible ASCII characters"
        )
    return value
