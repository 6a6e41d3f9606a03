"""A request that makes the KV of chunks durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from shared.engine.jobs.job import BranchWork, Computed, Job
from shared.engine.kv.segment import Branch
from shared.generation.asked import Chunk, PrefillRequest, total_len
from shared.generation.told import Usage


@dataclass(slots=True, eq=False)
class ChunkWork:
    """A distinct chunk of a prefill request and where it stands in the request's list."""

    chunk: Chunk
    indices: list[int]
    broken: bool = False
    branch: Branch | None = None


@dataclass(slots=True, eq=False)
class PrefillJob(Job):
    """``to_compute`` waits for one of few places in flight, so that a large request holds little KV at a
    time. ``on_computed`` stores a chunk."""

    request: PrefillRequest
    on_computed: Callable[[PrefillJob, ChunkWork, Computed], None] = field(kw_only=True)
    works_by_id: dict[str, ChunkWork] = field(default_factory=dict)
    to_compute: deque[ChunkWork] = field(default_factory=deque)
    in_flight: dict[str, ChunkWork] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, chunk in enumerate(self.request.chunks):
            self.works_by_id.setdefault(chunk.chunk_id, ChunkWork(chunk, [])).indices.append(index)
        self.num_open = len(self.works_by_id)

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
