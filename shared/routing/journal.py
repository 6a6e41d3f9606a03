"""Keeps what one holder has of one tier, and tells it: all of it at first, then what came and went."""

from __future__ import annotations

from collections.abc import Collection

from shared.routing.costs import ChunkKey, chunk_key
from shared.routing.reports import MOST_HELD, HeldChunks, LaneName


class HeldJournal:
    """``epoch``: larger than that of whoever held this lane before, such as the time at the start.

    What is told of a key is how its last change left it, also where that is how it was before: a router that
    has seen some of the changes already, by a snapshot, or that has ceased to believe in a key meanwhile, is
    right again afterwards. Beyond ``most_held`` keys nothing is told of another until one goes.
    """

    def __init__(self, lane: LaneName, epoch: int, most_held: int = MOST_HELD) -> None:
        self.lane, self.epoch = lane, epoch
        self._most_held = most_held
        self._held: set[ChunkKey] = set()
        self._changed: dict[ChunkKey, bool] = {}  # since it was told; whether it is there now
        self._seq = 0
        self._told_seq: int | None = None

    def add(self, key: ChunkKey) -> None:
        if key in self._held or len(self._held) < self._most_held:
            self._held.add(key)
            self._changed[key] = True
            self._seq += 1

    def remove(self, key: ChunkKey) -> None:
        if key in self._held:
            self._held.remove(key)
            self._changed[key] = False
            self._seq += 1

    def tell(self) -> HeldChunks:
        """For everybody: what changed since the last time, or all where that is less. Without a change it
        renews the lease."""
        changed, base_seq = self._changed, self._told_seq
        self._changed, self._told_seq = {}, self._seq
        if base_seq is None or len(changed) > max(len(self._held), 1):
            return self.snapshot()
        added = frozenset(key for key, there in changed.items() if there)
        return HeldChunks(self.lane, self.epoch, self._seq, added, frozenset(changed) - added, base_seq)

    def snapshot(self) -> HeldChunks:
        """For one that has missed something. What is told next follows upon it."""
        return HeldChunks(self.lane, self.epoch, self._seq, frozenset(self._held))

    def check_invariants(self) -> None:
        assert len(self._held) <= self._most_held, "keys"
        assert all((key in self._held) is there for key, there in self._changed.items()), "changes"
        assert self._told_seq is None or self._told_seq <= self._seq, "numbers"
        assert bool(self._changed) == (self._seq != (self._told_seq or 0)), "numbers without changes"


class ComparedNames:
    """Keeps a journal for a holder that says what it has and not what changes."""

    def __init__(self, journal: HeldJournal) -> None:
        self._journal = journal
        self._keys: dict[str, ChunkKey] = {}

    def hold(self, chunk_ids: Collection[str]) -> None:
        """All that is there now."""
        for gone in self._keys.keys() - set(chunk_ids):
            self._journal.remove(self._keys.pop(gone))
        for chunk_id in chunk_ids:
            if chunk_id not in self._keys:
                self._keys[chunk_id] = key = chunk_key(chunk_id)
                self._journal.add(key)
