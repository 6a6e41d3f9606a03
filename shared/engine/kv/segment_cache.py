"""Provides the KV of a request's context: resident, else loaded, else computed and written back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from shared.engine.decoding.forest import chunk_branch
from shared.engine.jobs.context import ContextJob
from shared.engine.jobs.job import BranchWork, Computed, Job
from shared.engine.kv.chunk_reads import FirstLayer, Loaded
from shared.engine.kv.loader import ComputedChunk, Loader
from shared.engine.kv.residency import Entry, Pool, State
from shared.engine.kv.segment import Branch
from shared.engine.model.spec import ModelSpec
from shared.identity import ids_hash

_PREFIX = "prefix:"
Holders = Callable[[Entry], Iterator[ContextJob]]


class SegmentCache:
    """The pool and what fills it. ``holders`` names the requests that wait for an entry."""

    def __init__(self, spec: ModelSpec, resident_bytes: int, loader: Loader, holders: Holders) -> None:
        self._spec = spec
        self._pool = Pool(resident_bytes)
        self._loader = loader
        self._holders = holders
        self._missing: list[Entry] = []

    @property
    def num_bytes(self) -> int:
        return self._pool.num_bytes

    def chunk_ids(self) -> tuple[str, ...]:
        """Resident chunks, least recently used first."""
        return tuple(key for key in self._pool.ready_keys() if not key.startswith(_PREFIX))

    def acquire_prefix(self, job: Job) -> None:
        prefix_ids = job.request.prefix_ids
        if prefix_ids:
            key = _PREFIX + ids_hash(prefix_ids)
            branch = None if self._pool.get(key) else Branch(self._spec, prefix_ids, 0)
            job.prefix, _ = self._pool.acquire(key, prefix_ids)
            if branch is not None:
                self._pool.compute(job.prefix, branch)

    def acquire_chunks(self, job: ContextJob, tell: Callable[[FirstLayer | Loaded], None]) -> None:
        """References to all chunks of the context; ``tell`` is called, on a loader's thread, for those that
        had to be looked for: with ``Loaded`` once each, before that perhaps with ``FirstLayer``.

        Raises:
            InvalidRequest: one identity stands for two runs of tokens.
        """
        if not job.request.reuse.row.stored:
            return
        to_load = {}
        for chunk in {c.chunk_id: c for c in job.request.chunks}.values():
            job.entries[chunk.chunk_id], new = self._pool.acquire(chunk.chunk_id, chunk.token_ids)
            if new:
                to_load[chunk.chunk_id] = len(chunk.token_ids)
        job.fetched.update(to_load)
        if to_load:
            self._loader.load(to_load, tell)

    def release(self, job: Job) -> None:
        for entry in job.held:
            self._pool.release(entry)

    def on_arriving(self, arriving: FirstLayer) -> None:
        entry = self._pool.get(arriving.key)
        if entry is not None and entry.state is State.LOADING:
            self._pool.stream(entry, arriving.segment)

    def on_loaded(self, loaded: Loaded) -> None:
        entry = self._pool.get(loaded.key)
        if entry is None or entry.state not in (State.LOADING, State.STREAMING):
            return
        if loaded.segment is not None:
            self._pool.fill(entry, loaded.segment)
            return
        self._pool.broke(entry)
        if entry.refs == 0:
            self._pool.discard(entry)
        else:
            entry.broken = loaded.broken
            self._missing.append(entry)
            next(self._holders(entry)).lost.add(entry.key)

    def start_missing(self, with_room: Callable[[Job, Callable[[], None]], None]) -> None:
        """Chunks that are stored nowhere are computed, as soon as the prefix they stand behind is there.
        ``with_room``: see ``Endings``."""
        for entry in list(self._missing):
            holder = next(self._holders(entry), None)
            if holder is None:
                self._missing.remove(entry)
                self._pool.discard(entry)
            elif holder.prefix is None or holder.prefix.ready:
                with_room(holder, partial(self._compute, entry, holder))

    def _compute(self, entry: Entry, holder: ContextJob) -> None:
        self._pool.compute(entry, chunk_branch(self._spec, holder.prefix, entry.token_ids))
        entry.prefix_ids = holder.request.prefix_ids
        self._missing.remove(entry)

    def works(self) -> list[BranchWork]:
        return [
            BranchWork(entry.branch, partial(self._on_computed, entry))
            for entry in self._pool.computing()
            if entry.branch
        ]

    def _on_computed(self, entry: Entry, _: Computed) -> None:
        """A prefix stays in memory; a chunk is written back, for the next time."""
        assert entry.branch is not None
        segment = entry.branch.segment
        is_chunk = not entry.key.startswith(_PREFIX)
        if is_chunk:
            self._loader.as_stored(segment)
        self._pool.fill(entry, segment)
        if is_chunk:
            self._loader.save(
                ComputedChunk(
                    entry.key,
                    entry.prefix_ids,
                    entry.token_ids,
                    segment,
                    replace=entry.broken,
                    write_back=True,
                )
            )

    def evict_unused(self) -> int:
        """Bytes of segments that nobody refers to, which are gone now."""
        return self._pool.evict_unused()

    def check_invariants(self, admitted: Iterable[Job]) -> None:
        self._pool.check_invariants(Counter(entry.key for job in admitted for entry in job.held))
        assert all(entry.state is State.LOADING for entry in self._missing), "a missing chunk is not waiting"
