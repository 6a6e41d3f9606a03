"""Provides the KV of a request's context: resident, else loaded, else computed and written back.

Loading and computing may race (``missing_kv``): what ends first is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from shared.engine.inbox import Inbox
from shared.engine.jobs.context import ContextJob
from shared.engine.jobs.job import BranchWork, Computed, Job
from shared.engine.kv.branch import Branch
from shared.engine.kv.chunk_reads import FirstLayer, Loaded
from shared.engine.kv.hot_chunks import HotChunk, within
from shared.engine.kv.late_chunks import LateChunks
from shared.engine.kv.loader import ChunkLoad, Loader
from shared.engine.kv.missing_kv import Holders, MissingKv
from shared.engine.kv.residency import LINK, PREFIX, Entry, Pool, State
from shared.engine.kv.segment import Segment
from shared.engine.kv.source import ComputedChunk
from shared.engine.model.spec import ModelSpec
from shared.identity import TokenIds, ids_hash


class SegmentCache:
    """The pool and what fills it. ``holders`` names the requests that wait for an entry; ``inbox`` brings the
    loader's news to the engine's thread."""

    def __init__(
        self, spec: ModelSpec, pool: Pool, loader: Loader, holders: Holders, inbox: Inbox, late: LateChunks
    ) -> None:
        self._spec = spec
        self._pool = pool
        self._loader = loader
        self._holders = holders
        self._inbox = inbox
        self._late = late
        self.missing = MissingKv(spec, pool, loader, holders, inbox, late, self._load)

    @property
    def num_bytes(self) -> int:
        return self._pool.num_bytes

    @property
    def used_bytes(self) -> int:
        """Of what requests refer to."""
        return self._pool.used_bytes

    @property
    def capacity_bytes(self) -> int:
        return self._pool.capacity_bytes

    def chunk_ids(self) -> tuple[str, ...]:
        """Resident chunks, least recently used first."""
        return self._pool.chunk_ids()

    def loading_bytes(self) -> Counter[str]:
        """Of chunks that are on their way, by the tier that they are read from; "" where they are not found
        yet."""
        left = Counter[str]()
        for entry in self._pool.loading():
            assert entry.load is not None
            left[entry.load.tiers.get(entry.stored_key, "")] += entry.missing_bytes(self._spec)
        return left

    def hottest(self, most_bytes: int) -> list[HotChunk]:
        """Resident chunks, those first that most requests have referred to, as far as they take at most so
        many bytes."""
        chunks = (HotChunk(e.key, e.token_ids, e.tenant) for e in self._pool.hottest())
        return list(within(chunks, most_bytes, self._spec.kv_bytes_per_token))

    def warm(self, chunks: Sequence[HotChunk], told: Callable[[bool], None]) -> None:
        """Begins to load chunks that no request has asked for, in this order, as far as there is free room:
        what is resident does not give way to them. Calls ``told`` once for each: whether it is resident."""
        free_bytes = self.capacity_bytes - self.num_bytes - self.loading_bytes().total()
        missing = [chunk for chunk in chunks if self._pool.get(chunk.chunk_id) is None]
        fitting = list(within(missing, free_bytes, self._spec.kv_bytes_per_token))
        for chunk in fitting:
            self._load(chunk.tenant, self._pool.expect(chunk), told=told)
        for chunk in chunks:
            if chunk not in fitting:
                entry = self._pool.get(chunk.chunk_id)
                told(entry is not None and entry.ready)

    def acquire_prefix(self, job: Job) -> None:
        """A prefix is resident once per tenant: nobody learns from his times what others put in front."""
        prefix_ids = job.request.prefix_ids
        if prefix_ids:
            key = f"{PREFIX}{job.request.tenant}:{ids_hash(prefix_ids)}"
            branch = None if self._pool.get(key) else Branch(self._spec, prefix_ids, 0)
            job.prefix, _ = self._acquire(job, key, prefix_ids)
            if branch is not None:
                self._pool.compute(job.prefix, branch)

    def acquire_chunks(self, job: ContextJob, tell: Callable[[FirstLayer | Loaded, ChunkLoad], None]) -> None:
        """References to all chunks of the context; ``tell`` is called, on a loader's thread, for those that
        had to be looked for: see ``Loader.load``.

        Raises:
            InvalidRequest: one identity stands for two runs of tokens.
        """
        if not job.request.reuse.row.stored:
            return
        to_load = {}
        for chunk in {c.chunk_id: c for c in job.request.chunks}.values():
            job.entries[chunk.chunk_id], new = self._acquire(job, chunk.chunk_id, chunk.token_ids)
            if new:
                to_load[chunk.chunk_id] = len(chunk.token_ids)
        job.fetched.update(to_load)
        if to_load:
            of, load = job.request, self._begun(job.entries, to_load)
            job.load = load
            told = partial(_told, tell, load)
            self._loader.load(load, told, traceparent=of.traceparent, tenant=of.tenant)

    def release(self, job: Job) -> None:
        for entry in job.held:
            self._pool.release(entry)

    def _acquire(self, job: Job, key: str, token_ids: TokenIds) -> tuple[Entry, bool]:
        return self._pool.acquire(key, token_ids, job.request.tenant)

    def on_arriving(self, arriving: FirstLayer, load: ChunkLoad) -> None:
        entry = self._pool.get(arriving.key)
        if entry is not None and entry.load is load and entry.state is State.LOADING:
            self._pool.stream(entry, arriving.segment)

    def on_loaded(self, loaded: Loaded, load: ChunkLoad, asker: ContextJob | None = None) -> None:
        """``asker``: whose it was looked for."""
        self._late.on_loaded(load, replace(loaded, key=loaded.key.removeprefix(LINK)))
        entry = self._pool.get(loaded.key)
        if entry is None or entry.load is not load:
            return
        entry.load = None
        if entry.ready:
            if loaded.segment is None and not entry.is_link:
                self._save(entry)  # it was computed before anybody knew that it is stored nowhere
                for job in self._holders(entry):
                    if isinstance(job, ContextJob):
                        names = job.late.intersection(job.names_of(entry))
                        job.late -= names
                        job.lost |= names
        elif loaded.segment is None:
            self._lost(entry, loaded.broken)
        else:
            if asker is not None:
                asker.clock.tick_loaded(loaded)
            self._arrived(entry, loaded.segment)

    def _arrived(self, entry: Entry, segment: Segment) -> None:
        was_late, branch = entry.late, entry.branch
        self._pool.fill(entry, segment)
        if was_late:
            self._late.on_load_first(branch.segment.length if branch is not None else 0)
        self.missing.found(entry)

    def _lost(self, entry: Entry, broken: bool) -> None:
        entry.broken = broken
        if entry.state is not State.COMPUTING:
            self._pool.broke(entry)
        self.missing.lost(entry)
        for job in self._asker(entry):
            job.lost.update(job.names_of(entry))

    def _load(
        self, tenant: str, entry: Entry, encoding: str = "", told: Callable[[bool], None] | None = None
    ) -> None:
        chunk_id = entry.stored_key
        load = self._begun({chunk_id: entry}, {chunk_id: len(entry.token_ids)})

        def on_loaded(loaded: Loaded) -> None:
            self.on_loaded(loaded, load)
            if told is not None:
                told(entry.ready)

        def tell(event: FirstLayer | Loaded) -> None:
            if isinstance(event, Loaded):
                loaded = replace(event, key=entry.key)
                self._inbox.post(lambda: on_loaded(loaded))

        self._loader.load(load, tell, encoding, tenant=tenant)

    def _begun(self, entries: Mapping[str, Entry], chunk_lens: Mapping[str, int]) -> ChunkLoad:
        load = ChunkLoad(chunk_lens, self._late.now_s)
        for key in chunk_lens:
            entries[key].load = load
        return load

    # --- what is computed ----------------------------------------------------------------------------------

    def works(self) -> list[BranchWork]:
        return [
            BranchWork(entry.branch, partial(self._on_computed, entry), late=entry.late)
            for entry in self._pool.computing()
            if entry.branch
        ]

    def _on_computed(self, entry: Entry, _: Computed) -> None:
        """A prefix or a link stays in memory; a chunk is written back, for the next time."""
        if entry.branch is None or self._pool.get(entry.key) is not entry:
            return  # since the step began everybody has let go of it
        segment, load = entry.branch.segment, entry.load
        stored = load is not None and self._late.on_computed_first(entry, load)
        if stored or entry.is_link:
            entry.load = None
        if entry.is_chunk:
            self._loader.as_stored(segment, saved=not stored)
        self._pool.fill(entry, segment)
        if entry.is_chunk:
            if load is None:
                self._save(entry)
            else:
                self._count_late(entry)
            for job in self._holders(entry):
                self.missing.release_links(job)

    def _count_late(self, entry: Entry) -> None:
        self._late.counts.num_chunks += 1
        self._late.counts.num_tokens += len(entry.token_ids)
        for job in self._asker(entry):
            job.late.update(job.names_of(entry))

    def _asker(self, entry: Entry) -> Iterator[ContextJob]:
        """The first request that names the chunk, if any does: others may only have it in a chain."""
        jobs = (job for job in self._holders(entry) if isinstance(job, ContextJob) and job.names_of(entry))
        return islice(jobs, 1)

    def _save(self, entry: Entry) -> None:
        assert entry.segment is not None
        self._loader.save(
            ComputedChunk(
                entry.key,
                entry.prefix_ids,
                entry.token_ids,
                entry.segment,
                replace=entry.broken,
                write_back=True,
                tenant=entry.tenant,
                parent_id=entry.parent_id,
                asked_by=next((job.request.asked_by for job in self._holders(entry)), ""),
            )
        )

    def forget(self, chunk_ids: Sequence[str]) -> None:
        """As chunks and as links of chains."""
        for chunk_id in chunk_ids:
            self._pool.forget(chunk_id)
            self._pool.forget(LINK + chunk_id)

    def evict_unused(self) -> int:
        """Bytes of segments that nobody refers to, which are gone now."""
        return self._pool.evict_unused()

    def check_invariants(self, admitted: Iterable[Job]) -> None:
        self._pool.check_invariants(Counter(entry.key for job in admitted for entry in job.held))
        self.missing.check_invariants()


def _told(
    tell: Callable[[FirstLayer | Loaded, ChunkLoad], None], load: ChunkLoad, event: FirstLayer | Loaded
) -> None:
    tell(event, load)
