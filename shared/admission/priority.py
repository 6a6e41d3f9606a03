"""Lets what is urgent go before what came earlier, within one tenant and only so often.

A priority is a whole number, and lower goes earlier, as with vLLM. Whoever waits is overtaken by at most
``MOST_OVERTAKEN`` that came later; then it is due, and only those that were there before it go first. Among
tenants priorities mean nothing: their shares do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, TypeVar

MOST_OVERTAKEN = 16
HIGHEST, LOWEST = -100, 100


class Waiting(Protocol):
    """``overtaken``: how many that came later went first."""

    overtaken: int

    @property
    def priority(self) -> int: ...


WaitingT = TypeVar("WaitingT", bound=Waiting)


def first_of(line: Collection[WaitingT]) -> WaitingT:
    """Returns who goes next. ``line``: not empty, whoever came first is first."""
    due = next((one for one in line if one.overtaken >= MOST_OVERTAKEN), None)
    return min(line, key=lambda one: one.priority) if due is None else due


def last_of(line: Sequence[WaitingT]) -> WaitingT:
    """Returns whoever is missed least: of the least urgent the one that came last."""
    return max(reversed(line), key=lambda one: one.priority)


def went_first(one: WaitingT, line: Iterable[WaitingT]) -> None:
    """``one`` of the line goes before those in front of it."""
    for other in line:
        if other is one:
            return
        other.overtaken += 1


def in_order(line: Collection[WaitingT]) -> list[WaitingT]:
    """Returns the line in the order in which it would go if nobody came."""
    by_priority = {id(one): rank for rank, one in enumerate(sorted(line, key=lambda one: one.priority))}
    at_last = {id(one): i + MOST_OVERTAKEN - one.overtaken for i, one in enumerate(line)}
    return sorted(line, key=lambda one: min(by_priority[id(one)], at_last[id(one)]))
