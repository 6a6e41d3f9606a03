"""A request that makes the KV of chunks durable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from shared.engine.jobs.job import BranchWork, Computed, Job
from shared.engine.kv.branch import Branch
from shared.generation.asked import Chunk, PrefillRequest, chain_of, total_len
from shared.generation.told import Usage


@dataclass(slots=True, eq=False)
class ChunkWork:
    """A distinct chunk of a prefill request, the ``chain`` in front of it, and where it stands in the
    request's list. ``there``: it is stored, or at least computed."""

    chunk: Chunk
    chain: tuple[Chunk, ...]
    indices: list[int]
    broken: bool = False
    branch: Branch | None = None
    there: bool = False


@dataclass(slots=True)
class PrefillTimes:
    """Instants of ``time.monotonic()``; 0.0 where not reached. ``checked``: the last chunk was looked for in
    the store; computing and storing overlap."""

    checked: float = 0.0
    first_started: float = 0.0
    last_computed: float = 0.0
    first_computed: float = 0.0
    last_stored: float = 0.0
    num_computed: int = 0
    num_tokens: int = 0

    def tick_computed(self, num_tokens: int) -> None:
        """A chunk of so many tokens was computed."""
        self.last_computed = time.monotonic()
        self.first_computed = self.first_computed or self.last_computed
        self.num_computed += 1
        self.num_tokens += num_tokens


@dataclass(slots=True, eq=False)
class PrefillJob(Job):
    """``to_compute`` waits for one of few places in flight, so that a large request holds little KV at a
    time. ``on_computed`` stores a chunk. ``parents`` stand in front of others of the request."""

    request: PrefillRequest
    on_computed: Callable[[PrefillJob, ChunkWork, Computed], None] = field(kw_only=True)
    works_by_id: dict[str, ChunkWork] = field(default_factory=dict)
    to_compute: list[ChunkWork] = field(default_factory=list)
    in_flight: dict[str, ChunkWork] = field(default_factory=dict)
    parents: set[str] = field(default_factory=set)
    times: PrefillTimes = field(default_factory=PrefillTimes)

    def __post_init__(self) -> None:
        request = self.request
        for index, chunk in enumerate(request.chunks):
            if chunk.chunk_id not in self.works_by_id:
                chain = chain_of(chunk, (*request.links, *request.chunks))
                assert chain is not None, "a prefill of unknown chains was admitted"
                self.works_by_id[chunk.chunk_id] = ChunkWork(chunk, chain, [])
            self.works_by_id[chunk.chunk_id].indices.append(index)
        self.num_open = len(self.works_by_id)
        self.parents = {link.chunk_id for work in self.works_by_id.values() for link in work.chain}

    def awaits(self, chain: Iterable[Chunk]) -> bool:
        """Whether some of these chunks are still to be looked for or computed by this very request."""
        works = (self.works_by_id.get(link.chunk_id) for link in chain)
        return any(work is not None and not work.there for work in works)

    def branches(self) -> list[Branch]:
        return [work.branch for work in self.in_flight.values() if work.branch]

    def works(self) -> list[BranchWork]:
        return [
            BranchWork(work.branch, partial(self.on_computed, self, work), self)
            for work in self.in_flight.values()
            if work.branch and work.branch.pending
        ]

    def usage(self) -> Usage:
        """Its chunks' tokens, nothing generated."""
        num_tokens = total_len(self.request.chunks)
        return Usage(num_tokens, 0, num_tokens, 0)
