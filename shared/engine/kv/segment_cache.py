"""Provides the KV of a request's context: resident, else loaded, else computed and written back.

A chunk of a chain is computed behind the chunks in front of it. These are entries of their own (``link:…``),
since nothing lossy may stand in a chain: they are loaded where they are stored exactly, else computed in
their turn, and not stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from shared.engine.decoding.forest import chunk_branch
from shared.engine.inbox import Inbox
from shared.engine.jobs.context import ContextJob
from shared.engine.jobs.job import BranchWork, Computed, Job
from shared.engine.kv.branch import Branch
from shared.engine.kv.chunk_reads import FirstLayer, Loaded, Tell
from shared.engine.kv.encodings import EXACT
from shared.engine.kv.loader import FoundChain, Loader
from shared.engine.kv.residency import Entry, Pool, State
from shared.engine.kv.segment import Segment
from shared.engine.kv.source import ComputedChunk
from shared.engine.model.spec import ModelSpec
from shared.generation.asked import Chunk, chain_of
from shared.identity import TokenIds, ids_hash

_PREFIX, _LINK = "prefix:", "link:"
Holders = Callable[[Entry], Iterator[Job]]


class SegmentCache:
    """The pool and what fills it. ``holders`` names the requests that wait for an entry; ``inbox`` brings the
    loader's news to the engine's thread."""

    def __init__(self, spec: ModelSpec, pool: Pool, loader: Loader, holders: Holders, inbox: Inbox) -> None:
        self._spec = spec
        self._pool = pool
        self._loader = loader
        self._holders = holders
        self._inbox = inbox
        self._missing: list[Entry] = []
        self._looked_for: set[str] = set()  # chunks whose chain the source was asked for

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
        return tuple(key for key in self._pool.ready_keys() if not key.startswith((_PREFIX, _LINK)))

    def acquire_prefix(self, job: Job) -> None:
        """A prefix is resident once per tenant: nobody learns from his times what others put in front."""
        prefix_ids = job.request.prefix_ids
        if prefix_ids:
            key = f"{_PREFIX}{job.request.tenant}:{ids_hash(prefix_ids)}"
            branch = None if self._pool.get(key) else Branch(self._spec, prefix_ids, 0)
            job.prefix, _ = self._acquire(job, key, prefix_ids)
            if branch is not None:
                self._pool.compute(job.prefix, branch)

    def acquire_chunks(self, job: ContextJob, tell: Tell) -> None:
        """References to all chunks of the context; ``tell`` is called, on a loader's thread, for those that
        had to be looked for: with ``Loaded`` once each, before that perhaps with ``FirstLayer``.

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
            of = job.request
            self._loader.load(to_load, tell, traceparent=of.traceparent, tenant=of.tenant)

    def release(self, job: Job) -> None:
        for entry in job.held:
            self._pool.release(entry)

    def _acquire(self, job: Job, key: str, token_ids: TokenIds) -> tuple[Entry, bool]:
        return self._pool.acquire(key, token_ids, job.request.tenant)

    def on_arriving(self, arriving: FirstLayer) -> None:
        entry = self._pool.get(arriving.key)
        if entry is not None and entry.state is State.LOADING:
            self._pool.stream(entry, arriving.segment)

    def on_loaded(self, loaded: Loaded, asker: ContextJob | None = None) -> None:
        """``asker``: whose it was looked for."""
        if asker is not None:
            asker.clock.tick_loaded(loaded)
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
            for job in islice(self._holders(entry), 1):
                if isinstance(job, ContextJob):
                    job.lost.update(chunk_id for chunk_id, held in job.entries.items() if held is entry)

    def start_missing(self, with_room: Callable[[Job, Callable[[], None]], None]) -> None:
        """Chunks that are stored nowhere are computed, as soon as the prefix they stand behind is there.
        ``with_room``: see ``Endings``."""
        for entry in list(self._missing):
            holder = next(self._holders(entry), None)
            if holder is None:
                self._missing.remove(entry)
                self._pool.discard(entry)
            elif holder.prefix is None or holder.prefix.ready:
                chain = self._chain_of(entry, holder)
                links = None if chain is None else self.links(holder, chain)
                if links is not None:
                    with_room(holder, partial(self._compute, entry, holder, links))

    def _compute(self, entry: Entry, holder: Job, links: Sequence[Entry]) -> None:
        self._pool.compute(entry, chunk_branch(self._spec, holder.prefix, entry.token_ids, links))
        entry.prefix_ids = holder.request.prefix_ids
        self._missing.remove(entry)

    # --- chains --------------------------------------------------------------------------------------------

    def links(self, job: Job, chain: Sequence[Chunk]) -> list[Entry] | None:
        """References of ``job`` to the KV of a chain; None until all of it is there."""
        for i, link in enumerate(chain):
            key = _LINK + link.chunk_id
            if key not in job.links:
                job.links[key], new = self._acquire(job, key, link.token_ids)
                if new:
                    job.links[key].chain = tuple(chain[:i])
                    self._load(job, {link.chunk_id: len(link.token_ids)}, _LINK, EXACT)
        entries = [job.links[_LINK + link.chunk_id] for link in chain]
        return entries if all(entry.ready for entry in entries) else None

    def keep_link(self, job: Job, chunk: Chunk, segment: Segment) -> None:
        """What was just computed stands in front of other chunks of the request."""
        key = _LINK + chunk.chunk_id
        if key not in job.links:
            job.links[key], _ = self._acquire(job, key, chunk.token_ids)
            if (entry := job.links[key]).state is State.LOADING:
                if entry in self._missing:
                    self._missing.remove(entry)
                self._pool.fill(entry, segment)

    def _chain_of(self, entry: Entry, holder: Job) -> tuple[Chunk, ...] | None:
        """The chunks in front of a missing one, by the request or by the source, which is asked once."""
        if entry.chain is None:
            request = holder.request
            chunk = next(c for c in request.chunks if c.chunk_id == entry.key)
            entry.chain = chain_of(chunk, (*request.links, *request.chunks))
            if entry.chain is None and entry.key not in self._looked_for:
                self._looked_for.add(entry.key)
                self._loader.find_chain(
                    chunk, request.tenant, lambda found: self._inbox.post(lambda: self._on_chain(found))
                )
        return entry.chain

    def _on_chain(self, found: FoundChain) -> None:
        self._looked_for.discard(found.key)
        entry = self._pool.get(found.key)
        if entry is None or entry not in self._missing:
            return
        if found.chain is not None:
            entry.chain = found.chain
            return
        for job in list(self._holders(entry)):
            if isinstance(job, ContextJob):
                self._isolate(entry, job)

    def _isolate(self, entry: Entry, job: ContextJob) -> None:
        """The request uses the chunk as it is without those in front of it."""
        for chunk in {c.chunk_id: c for c in job.request.chunks}.values():
            if job.entries.get(chunk.chunk_id) is entry:
                key = chunk.isolated_id or f"{chunk.chunk_id}:isolated"
                job.entries[chunk.chunk_id], new = self._acquire(job, key, chunk.token_ids)
                job.entries[chunk.chunk_id].chain = ()
                self._pool.release(entry)
                job.isolated.add(chunk.chunk_id)
                job.lost.discard(chunk.chunk_id)
                if new:
                    self._load(job, {key: len(chunk.token_ids)})

    def _load(
        self, job: Job, chunk_lens: Mapping[str, int], key_prefix: str = "", encoding: str = ""
    ) -> None:
        def tell(event: FirstLayer | Loaded) -> None:
            if isinstance(event, Loaded):
                loaded = replace(event, key=key_prefix + event.key)
                self._inbox.post(lambda: self.on_loaded(loaded))

        self._loader.load(chunk_lens, tell, encoding, tenant=job.request.tenant)

    # --- what is computed ----------------------------------------------------------------------------------

    def works(self) -> list[BranchWork]:
        return [
            BranchWork(entry.branch, partial(self._on_computed, entry))
            for entry in self._pool.computing()
            if entry.branch
        ]

    def _on_computed(self, entry: Entry, _: Computed) -> None:
        """A prefix or a link stays in memory; a chunk is written back, for the next time."""
        assert entry.branch is not None
        segment = entry.branch.segment
        is_chunk = not entry.key.startswith((_PREFIX, _LINK))
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
                    tenant=entry.tenant,
                    parent_id=entry.chain[-1].chunk_id if entry.chain else "",
                )
            )
            for job in self._holders(entry):
                self._release_links(job)

    def _release_links(self, job: Job) -> None:
        """Of a request whose chunks are all there."""
        if isinstance(job, ContextJob) and all(entry.ready for entry in job.entries.values()):
            for link in job.links.values():
                self._pool.release(link)
            job.links.clear()

    def forget(self, chunk_ids: Sequence[str]) -> None:
        """As chunks and as links of chains."""
        for chunk_id in chunk_ids:
            self._pool.forget(chunk_id)
            self._pool.forget(_LINK + chunk_id)

    def evict_unused(self) -> int:
        """Bytes of segments that nobody refers to, which are gone now."""
        return self._pool.evict_unused()

    def check_invariants(self, admitted: Iterable[Job]) -> None:
        self._pool.check_invariants(Counter(entry.key for job in admitted for entry in job.held))
        assert all(entry.state is State.LOADING for entry in self._missing), "a missing chunk is not waiting"
