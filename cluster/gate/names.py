"""Names and shares as a command line lists them."""

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


def parse_shares(option: str, numbers: str, of: str) -> tuple[float, ...]:
    """``0,0.1,0.2``, each once, in that order; ``option``: what they were given by, ``of``: of what they are
    shares.

    Raises:
        InvalidRequest: something is no number from 0 to 1.
    """
    shares = []
    for number in filter(None, (part.strip() for part in numbers.split(","))):
        try:
            share = float(number)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:  # True for NaN
            raise InvalidRequest(f"{option}: {number!r} is not a share of {of}; write 0 to 1")
        shares.append(share)
    return tuple(dict.fromkeys(shares))
