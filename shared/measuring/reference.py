"""Says what the reference reads, which is ``full`` over the whole blocks of the chunks that were retrieved,
as far as the model reads so much."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Place = tuple[str, int]
"""A document, and the number of a chunk in it."""


def within_reach(
    blocks: Sequence[Place], retrieved: Sequence[Place], num_tokens: Callable[[Place], int], room: int
) -> list[Place]:
    """The retrieved chunks, and of the others in their whole ``blocks`` those nearest to them that have room
    beside them: ``room`` tokens. In the order of ``blocks``."""
    distances = {
        place: min(abs(place[1] - at) for i, at in retrieved if i == place[0])
        for place in blocks
        if place not in retrieved
    }
    kept = set(retrieved)
    for place in sorted(distances, key=lambda place: (distances[place], place)):
        room -= num_tokens(place)
        if room < 0:
            break
        kept.add(place)
    return [place for place in blocks if place in kept]
