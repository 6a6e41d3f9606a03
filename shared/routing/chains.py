"""Remembers which chunk stands in front of which, as questions tell it, so that computing a miss counts with
its chain."""

from __future__ import annotations

from shared.routing.costs import ChunkKey

_MOST_LINKS = 64


class KnownChains:
    """Not thread-safe. An identity follows from what a chunk is computed behind, so what was told of it holds
    for ever. ``capacity``: chunks; those told of longest ago are forgotten."""

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._links: dict[ChunkKey, tuple[int, ChunkKey | None]] = {}

    def tell(self, key: ChunkKey, num_tokens: int, parent: ChunkKey | None) -> None:
        """``parent``: the chunk in front of it; None: there is none."""
        self._links.pop(key, None)
        self._links[key] = num_tokens, parent
        if len(self._links) > self._capacity:
            del self._links[next(iter(self._links))]

    def chain(self, key: ChunkKey) -> tuple[tuple[ChunkKey, int], ...]:
        """Returns keys and token counts of the chunks in front of it, in order, as far back as questions told
        of them: what is not known counts nothing. 64 at most."""
        found: list[tuple[ChunkKey, int]] = []
        _, parent = self._links.get(key, (0, None))
        while parent is not None and (link := self._links.get(parent)) and len(found) < _MOST_LINKS:
            found.append((parent, link[0]))
            parent = link[1]
        return tuple(reversed(found))
