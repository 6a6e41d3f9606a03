"""Names as a command line lists them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from shared.errors import InvalidRequest

MemberT = TypeVar("MemberT", bound=StrEnum)


def parse_names(option: str, names: str, members: Iterable[MemberT]) -> tuple[MemberT, ...]:
    """The ``members`` that ``names`` lists, in its order; ``option``: what it was given by.

    Raises:
        InvalidRequest: names what is none of them.
    """
    known = {member.value: member for member in members}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in known]:
        raise InvalidRequest(f"{option}: {unknown[0]!r} is not one of {', '.join(known)}")
    return tuple(known[name] for name in wanted)
