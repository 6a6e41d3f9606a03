"""Segments that any request may place: one resident copy per chunk, shared by everybody who retrieved it.

An entry is LOADING (a loader thread fills it) or COMPUTING (it is being prefilled) until it is READY. References count the
requests that placed it or wait for it; READY entries nobody refers to stay until their room is needed, least recently used first.
Owned by the engine's thread.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from shared.engine.segment import Branch, Segment
from shared.errors import InvalidRequest


class State(enum.Enum):
    LOADING = "loading"
    COMPUTING = "computing"
    READY = "ready"


@dataclass(slots=True, eq=False)
class Entry:
    """``branch`` computes it, behind ``prefix_ids``, while COMPUTING; ``broken``: a stored copy failed its checksum and must be
    replaced."""

    key: str
    token_ids: tuple[int, ...]
    state: State
    refs: int = 0
    segment: Segment | None = None
    branch: Branch | None = None
    prefix_ids: tuple[int, ...] = ()
    broken: bool = False


class Pool:
    """Entries by key, in order of last use."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.num_bytes = 0
        self._entries: dict[str, Entry] = {}

    def acquire(self, key: str, token_ids: tuple[int, ...]) -> tuple[Entry, bool]:
        """The entry with one more reference, and whether it is new (LOADING; somebody must fill it).

        Raises:
            InvalidRequest: the key stands for other tokens.
        """
        entry = self._entries.pop(key, None)
        new = entry is None
        if entry is None:
            entry = Entry(key, token_ids, State.LOADING)
        self._entries[key] = entry  # most recently used last
        if entry.token_ids != token_ids:
            raise InvalidRequest(f"chunks: identity {key} was given for two different runs of tokens")
        entry.refs += 1
        return entry, new

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def release(self, entry: Entry) -> None:
        entry.refs -= 1
        if entry.refs == 0 and entry.state is State.COMPUTING:
            del self._entries[entry.key]  # nobody wants it any more
        self._evict()

    def compute(self, entry: Entry, branch: Branch) -> None:
        entry.state, entry.branch = State.COMPUTING, branch

    def fill(self, entry: Entry, segment: Segment) -> None:
        entry.state, entry.segment, entry.branch = State.READY, segment, None
        self.num_bytes += segment.num_bytes
        self._evict()

    def discard(self, entry: Entry) -> None:
        """Takes an unreferenced entry that could not be loaded out."""
        del self._entries[entry.key]

    def computing(self) -> list[Entry]:
        return [entry for entry in self._entries.values() if entry.state is State.COMPUTING]

    def ready_keys(self) -> list[str]:
        return [entry.key for entry in self._entries.values() if entry.state is State.READY]

    def check_invariants(self, refs: Mapping[str, int]) -> None:
        """``refs``: what the requests alive hold, counted anew."""
        ready = [e for e in self._entries.values() if e.state is State.READY]
        assert self.num_bytes == sum(e.segment.num_bytes for e in ready if e.segment), "resident bytes"
        for key, entry in self._entries.items():
            assert entry.refs == refs.get(key, 0), f"{key}: {entry.refs} references, {refs.get(key, 0)} holders"
            assert (entry.segment is not None) == (entry.state is State.READY), f"{key}: segment in state {entry.state}"
            assert (entry.branch is not None) == (entry.state is State.COMPUTING), f"{key}: branch in state {entry.state}"
        assert set(refs) <= set(self._entries), "a request holds what is not resident"
        assert self.num_bytes <= self.capacity_bytes or all(e.refs for e in ready), "evictable entries above capacity"

    def _evict(self) -> None:
        for entry in [e for e in self._entries.values() if e.state is State.READY and e.refs == 0]:
            if self.num_bytes <= self.capacity_bytes:
                return
            assert entry.segment is not None
            self.num_bytes -= entry.segment.num_bytes
            del self._entries[entry.key]
