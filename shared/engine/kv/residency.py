"""Segments that any request may place: one resident copy per chunk, shared by everybody who retrieved it.

An entry is LOADING (loader threads look for it), then STREAMING (its first layer is there) or COMPUTING (it
is being prefilled) until it is READY::

    LOADING ──► STREAMING ──► READY
      │ ▲           │           ▲
      │ └─ broke ───┤           │
      └───────► COMPUTING ──────┘

Where its load comes late, it goes on while the entry is COMPUTING (``late``); what ends first fills it. If
nobody waits for it any more, it is LOADING again.

References count the requests that placed it or wait for it; READY entries nobody refers to stay until their
room is needed: links go first, which serve only to compute others, then the least recently used ones. Owned
by the engine's thread.

Every entry belongs to one tenant, and every tenant keeps his floor (``shared.floors``): the pool may exceed
its capacity by what is kept.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shared.engine.kv.branch import Branch
from shared.engine.kv.hot_chunks import HotChunk
from shared.engine.kv.loader import ChunkLoad
from shared.engine.kv.segment import Segment
from shared.engine.model.spec import ModelSpec
from shared.errors import InvalidRequest
from shared.floors import Floors
from shared.generation.asked import Chunk
from shared.identity import TokenIds

PREFIX, LINK = "prefix:", "link:"
"""Of keys: of prefixes, and of chunks that others are computed behind."""


class State(enum.Enum):
    LOADING = "loading"
    STREAMING = "streaming"
    COMPUTING = "computing"
    READY = "ready"


@dataclass(slots=True, eq=False)
class Entry:
    """``branch`` computes it, behind ``prefix_ids`` and ``chain``, while COMPUTING; ``broken``: a stored copy
    failed its checksum and must be replaced. ``chain`` None: not known (yet). ``parent_id``: as its request
    names what is in front of it. ``tenant``: whose it is.
    ``load``: it is being looked for or read; of a READY one: whether it is stored will be told. ``late``: it
    is computed, or will be, because a load comes late; ``only_loaded``: nobody can, or could. ``num_uses``:
    requests that have referred to it.
    """

    key: str
    token_ids: TokenIds
    state: State
    refs: int = 0
    num_uses: int = 0
    segment: Segment | None = None
    branch: Branch | None = None
    prefix_ids: TokenIds = ()
    chain: tuple[Chunk, ...] | None = None
    parent_id: str = ""
    broken: bool = False
    tenant: str = ""
    load: ChunkLoad | None = None
    late: bool = False
    only_loaded: bool = False

    @property
    def is_link(self) -> bool:
        return self.key.startswith(LINK)

    @property
    def is_chunk(self) -> bool:
        return not self.key.startswith((PREFIX, LINK))

    @property
    def all_there(self) -> bool:
        """Of what arrives; the loader only has to say so."""
        return self.segment is not None and self.segment.whole

    @property
    def stored_key(self) -> str:
        """Name that the store gives it."""
        return self.key.removeprefix(LINK)

    @property
    def num_bytes(self) -> int:
        return 0 if self.segment is None else self.segment.num_bytes

    @property
    def ready(self) -> bool:
        return self.state is State.READY

    @property
    def awaited(self) -> bool:
        """Its load is under way, and not all of it is there."""
        loading = self.load is not None and self.state in (State.LOADING, State.STREAMING)
        return loading and not self.all_there

    def missing_bytes(self, spec: ModelSpec) -> int:
        """Of a model of this shape, what of it is not there."""
        arrival = self.segment.arrival if self.segment is not None else None
        whole = len(self.token_ids) * spec.kv_bytes_per_token
        return whole if arrival is None else int(whole * arrival.missing_share)

    @property
    def arriving(self) -> bool:
        """A pass may begin on it, waiting for layers as it goes."""
        arrival = self.segment.arrival if self.segment is not None else None
        return self.state is State.STREAMING and arrival is not None and not arrival.failed


@dataclass(frozen=True, slots=True)
class _Listed:
    """Entries as every step asks for them: keys of READY ones, those of them that are chunks, and those that
    are not READY; in order of last use."""

    ready: list[str]
    chunk_ids: tuple[str, ...]
    unready: list[Entry]

    @classmethod
    def of(cls, entries: Collection[Entry]) -> _Listed:
        ready = [entry for entry in entries if entry.state is State.READY]
        chunk_ids = tuple(entry.key for entry in ready if entry.is_chunk)
        return cls([entry.key for entry in ready], chunk_ids, [e for e in entries if not e.ready])


class Pool:
    """Entries by key, in order of last use. ``used_bytes``: of those that somebody refers to.
    ``floor_share``: see ``Floors``."""

    def __init__(self, capacity_bytes: int, floor_share: float = 0.0) -> None:
        self.capacity_bytes, self._floors = capacity_bytes, Floors(floor_share)
        self.num_bytes = self.used_bytes = 0
        self._entries: dict[str, Entry] = {}
        self._listed: _Listed | None = None  # until an entry comes, goes, is used, or becomes READY

    def acquire(self, key: str, token_ids: TokenIds, tenant: str = "") -> tuple[Entry, bool]:
        """The entry with one more reference, and whether it is new (LOADING; somebody must fill it).

        Raises:
            InvalidRequest: the key stands for other tokens.
        """
        self._listed = None
        entry = self._entries.pop(key, None)
        new = entry is None
        if entry is None:
            entry = Entry(key, token_ids, State.LOADING, tenant=tenant)
        self._entries[key] = entry  # most recently used last
        if entry.token_ids != token_ids:
            raise InvalidRequest(f"chunks: identity {key} was given for two different runs of tokens")
        entry.refs += 1
        entry.num_uses += 1
        if entry.refs == 1:
            self.used_bytes += entry.num_bytes
        return entry, new

    def expect(self, chunk: HotChunk) -> Entry:
        """Adds an entry that no request has asked for (LOADING; somebody must fill it), as the least recently
        used one. There is none of its key."""
        entry = Entry(chunk.chunk_id, chunk.token_ids, State.LOADING, tenant=chunk.tenant)
        self._entries = {entry.key: entry, **self._entries}
        self._listed = None
        return entry

    def hottest(self) -> list[Entry]:
        """READY chunks, those first that most requests have referred to, of equals the last used one."""
        chunks = [e for e in reversed(self._entries.values()) if e.ready and e.is_chunk]
        return sorted(chunks, key=lambda entry: -entry.num_uses)

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def release(self, entry: Entry) -> None:
        entry.refs -= 1
        if entry.refs == 0:
            self.used_bytes -= entry.num_bytes
        if entry.refs == 0 and entry.state is State.COMPUTING and entry.load is not None:
            self.wait_for_load(entry)
        elif entry.refs == 0 and entry.state is State.COMPUTING:
            self._remove(entry)  # nobody wants it any more
        self._evict(entry.tenant)

    def compute(self, entry: Entry, branch: Branch) -> None:
        self._count(entry, -entry.num_bytes)  # of what was arriving
        entry.state, entry.branch, entry.segment = State.COMPUTING, branch, None

    def wait_for_load(self, entry: Entry) -> None:
        """It is not computed beside its load any more."""
        entry.state, entry.branch, entry.late = State.LOADING, None, False

    def stream(self, entry: Entry, segment: Segment) -> None:
        """Its layers are arriving."""
        entry.state, entry.segment = State.STREAMING, segment
        self._count(entry, segment.num_bytes)
        self._evict(entry.tenant)

    def fill(self, entry: Entry, segment: Segment) -> None:
        if entry.state is not State.STREAMING:
            self._count(entry, segment.num_bytes)
        entry.state, entry.segment, entry.branch, entry.late = State.READY, segment, None, False
        self._listed = None
        self._evict(entry.tenant)

    def broke(self, entry: Entry) -> None:
        """Forgets what was arriving and will never be whole."""
        self._count(entry, -entry.num_bytes)
        entry.state, entry.segment = State.LOADING, None

    def discard(self, entry: Entry) -> None:
        """Takes an unreferenced entry that could not be loaded out."""
        self._remove(entry)

    def forget(self, key: str) -> None:
        """Takes an entry out that is READY and that nobody refers to."""
        entry = self._entries.get(key)
        if entry is not None and entry.state is State.READY and not entry.refs:
            self._count(entry, -entry.num_bytes)
            self._remove(entry)

    def computing(self) -> list[Entry]:
        return [entry for entry in self._lists().unready if entry.state is State.COMPUTING]

    def loading(self) -> list[Entry]:
        """Those whose load is under way, whether or not they are computed beside it."""
        return [e for e in self._lists().unready if e.load is not None and not e.all_there]

    def ready_keys(self) -> list[str]:
        return self._lists().ready

    def chunk_ids(self) -> tuple[str, ...]:
        """READY chunks, least recently used first."""
        return self._lists().chunk_ids

    def check_invariants(self, refs: Mapping[str, int]) -> None:
        """``refs``: what the requests alive hold, counted anew."""
        assert self._listed in (None, _Listed.of(self._entries.values())), "lists that are out of date"
        ready = [e for e in self._entries.values() if e.state is State.READY]
        assert self.num_bytes == sum(e.segment.num_bytes for e in self._entries.values() if e.segment), (
            "resident bytes"
        )
        assert all(e.segment.whole for e in ready if e.segment), "a ready segment lacks layers"
        assert self.used_bytes == sum(e.num_bytes for e in self._entries.values() if e.refs), "bytes in use"
        for key, entry in self._entries.items():
            assert entry.refs == refs.get(key, 0), (
                f"{key}: {entry.refs} references, {refs.get(key, 0)} holders"
            )
            has_segment = entry.state in (State.READY, State.STREAMING)
            assert (entry.segment is not None) == has_segment, f"{key}: segment in state {entry.state}"
            assert (entry.branch is not None) == (entry.state is State.COMPUTING), (
                f"{key}: branch in state {entry.state}"
            )
            assert not (entry.late and entry.ready), f"{key}: late and ready"
        assert set(refs) <= set(self._entries), "a request holds what is not resident"
        of_tenants: Counter[str] = Counter()
        for entry in self._entries.values():
            of_tenants[entry.tenant] += entry.num_bytes
        self._floors.check_invariants(of_tenants)
        assert self.num_bytes <= self.capacity_bytes or all(e.refs or self._is_kept(e) for e in ready), (
            "evictable entries above capacity"
        )

    def evict_unused(self) -> int:
        """Bytes of all READY entries that nobody refers to: they are gone."""
        before, capacity = self.num_bytes, self.capacity_bytes
        self.capacity_bytes = 0  # so there are no floors either
        self._evict("")
        self.capacity_bytes = capacity
        return before - self.num_bytes

    def _evict(self, tenant: str) -> None:
        """Makes room that ``tenant`` needs."""
        unused = [e for e in self._entries.values() if e.state is State.READY and e.refs == 0]
        for entry in sorted(unused, key=lambda entry: not entry.is_link):
            if self.num_bytes <= self.capacity_bytes:
                return
            if entry.tenant == tenant or not self._is_kept(entry):
                self._count(entry, -entry.num_bytes)
                self._remove(entry)

    def _lists(self) -> _Listed:
        if self._listed is None:
            self._listed = _Listed.of(self._entries.values())
        return self._listed

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry.key]
        self._listed = None

    def _is_kept(self, entry: Entry) -> bool:
        return self._floors.keeps(entry.tenant, entry.num_bytes, self.capacity_bytes)

    def _count(self, entry: Entry, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self.used_bytes += num_bytes if entry.refs else 0
        self._floors.count(entry.tenant, num_bytes)
