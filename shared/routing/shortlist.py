"""Finds the replicas that hold the most of a set of chunks, among a thousand, by arithmetic on bits."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator


def most_first(masks: Iterable[int], among: int) -> Iterator[int]:
    """``masks``: holders of each chunk, a bit per replica. Masks of those that hold the most of them, then of
    those that hold the second most, and so on; who holds none is in no mask.

    All replicas count at once: plane i has bit i of every replica's count.
    """
    planes: list[int] = []
    left = 0
    for mask in masks:
        carry = mask & among
        left |= carry
        for i, plane in enumerate(planes):
            planes[i], carry = plane ^ carry, plane & carry
        if carry:
            planes.append(carry)
    while left:
        top = left
        for plane in reversed(planes):
            top = top & plane or top
        yield top
        left &= ~top


def some(mask: int, count: int, draw: random.Random) -> Iterator[int]:
    """``count`` of the bits that are set, or all of them: those behind a place drawn by chance."""
    width = mask.bit_length()
    at = draw.randrange(width) if width else 0
    turned = mask >> at | (mask & ((1 << at) - 1)) << (width - at)
    for place, _ in zip(slots_of(turned), range(count), strict=False):
        yield (place + at) % width


def slots_of(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
