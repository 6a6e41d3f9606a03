"""Computes what is not there: chunks that are stored nowhere or come late, and the chains they stand behind.

A chunk of a chain is computed behind the chunks in front of it. Nothing lossy may stand there: a chunk that
the pool has, or is about to, does if its KV is exact. Any other is an entry of its own (``link:…``), loaded
where it is stored exactly, else computed in its turn, and not stored.

A chunk whose load comes later than computing it would end is computed beside it (``late_chunks``), and so is
what is missing of its chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import torch

from shared.engine.decoding.forest import chunk_branch
from shared.engine.inbox import Inbox
from shared.engine.jobs.context import ContextJob
from shared.engine.jobs.job import Job
from shared.engine.kv.branch import Branch
from shared.engine.kv.encodings import EXACT
from shared.engine.kv.late_chunks import LateChunks
from shared.engine.kv.loader import FoundChain, Loader
from shared.engine.kv.residency import LINK, Entry, Pool, State
from shared.engine.kv.segment import Segment
from shared.engine.model.out_of_memory import told_alike
from shared.engine.model.spec import ModelSpec
from shared.generation.asked import Chunk, chain_of
from shared.identity import TokenIds

Holders = Callable[[Entry], Iterator[Job]]


class LoadsEntries(Protocol):
    def __call__(self, tenant: str, entry: Entry, encoding: str = "") -> None: ...


class MissingKv:
    """Entries that are to be computed and wait for their prefix or chain. ``holders``, ``inbox``: see
    ``SegmentCache``; ``load`` looks for an entry in the store."""

    def __init__(
        self,
        spec: ModelSpec,
        pool: Pool,
        loader: Loader,
        holders: Holders,
        inbox: Inbox,
        late: LateChunks,
        load: LoadsEntries,
    ) -> None:
        self._spec = spec
        self._pool = pool
        self._loader = loader
        self._holders = holders
        self._inbox = inbox
        self._late = late
        self._load = load
        self._entries: list[Entry] = []
        self._looked_for: set[str] = set()  # chunks whose chain the source was asked for

    def lost(self, entry: Entry) -> None:
        """Its load has failed: it has to be computed, not only beside that."""
        if entry.state is not State.COMPUTING and entry not in self._entries:
            self._entries.append(entry)
        entry.late = False
        for job in self._holders(entry):
            for link in job.links.values():
                link.late = link.late and link.load is not None

    def found(self, entry: Entry) -> None:
        """Its load ended first."""
        if entry in self._entries:
            self._entries.remove(entry)
        for job in self._holders(entry):
            self.release_links(job)

    def start(self, with_room: Callable[[Job, Callable[[], None]], None]) -> None:
        """Computes what is missing, as soon as what it stands behind is there.
        ``with_room``: see ``Endings``."""
        for entry in list(self._entries):
            holder = next(self._holders(entry), None)
            if entry not in self._entries:
                continue  # there was no room for another one of its request
            if holder is None:
                self._entries.remove(entry)
                self._unwanted(entry)
            elif (holder.prefix is None or holder.prefix.ready) and not entry.all_there:
                chain = self._chain_of(entry, holder)
                links = None if chain is None else self.links(holder, chain, entry.late)
                if links is not None:
                    act = partial(self._compute, entry, holder, links)
                    self._try(holder, act) if entry.late else with_room(holder, act)

    def _compute(self, entry: Entry, holder: Job, links: Sequence[Entry]) -> None:
        self._pool.compute(entry, chunk_branch(self._spec, holder.prefix, entry.token_ids, links))
        entry.prefix_ids = holder.request.prefix_ids
        self._entries.remove(entry)

    def _unwanted(self, entry: Entry) -> None:
        """Nobody waits for it. What is on its way is kept for the next."""
        entry.late = False
        if entry.load is None:
            self._pool.discard(entry)

    # --- what comes late -----------------------------------------------------------------------------------

    def choose_late(self, jobs: Iterable[ContextJob], free: int, ahead: int) -> None:
        """Chooses what is computed beside its load. ``free``, ``ahead``: see ``Rows``."""
        for job in jobs:
            awaited = {entry.key: entry for entry in job.held if entry.awaited and not entry.late}
            if awaited:
                missing = partial(self._missing_links, job)
                to_come = ahead + sum(len(entry.token_ids) for entry in self._entries)
                for key in self._late.worth_computing(awaited.values(), missing, free, to_come):
                    self._compute_late(awaited[key])

    def _compute_late(self, entry: Entry) -> None:
        if entry not in self._entries:
            entry.late = True
            self._entries.append(entry)

    def _missing_links(self, job: Job, entry: Entry) -> Mapping[str, int] | None:
        chain = self._chain_of(entry, job)
        if chain is None:
            return None
        missing = {}
        for link in chain:
            key = self._link_key(link)
            held = self._pool.get(key)
            if held is not None and held.awaited and held.only_loaded:
                return None
            if held is None or held.awaited:
                missing[key] = len(link.token_ids)
        return missing

    def _try(self, job: Job, act: Callable[[], None]) -> None:
        try:
            with told_alike():
                act()
        except torch.OutOfMemoryError:
            self._stop_late(job)

    def spare(self, branch: Branch) -> bool:
        """Gives up what is computed beside its load, since it failed; False: it is needed."""
        entry = next((entry for entry in self._pool.computing() if entry.branch is branch), None)
        if entry is None or not entry.late:
            return False
        for job in list(self._holders(entry)):
            self._stop_late(job)
        return True

    def _stop_late(self, job: Job) -> None:
        """All of the request's that come late are waited for."""
        for entry in [entry for entry in job.held if entry.late and entry.load is not None]:
            entry.only_loaded = True
            if entry.state is State.COMPUTING:
                self._pool.wait_for_load(entry)
            elif entry in self._entries:
                self._entries.remove(entry)
            entry.late = False
        for key in [key for key, link in job.links.items() if link.late]:
            self._pool.release(job.links.pop(key))

    # --- chains --------------------------------------------------------------------------------------------

    def links(self, job: Job, chain: Sequence[Chunk], late: bool = False) -> list[Entry] | None:
        """References of ``job`` to the KV of a chain; None until all of it is there. ``late``: of a chunk
        that is computed beside its load, so that nothing of it is waited for."""
        entries = [self._link(job, link, chain[:i], late) for i, link in enumerate(chain)]
        return entries if all(entry.ready for entry in entries) else None

    def _link(self, job: Job, link: Chunk, chain: Sequence[Chunk], late: bool) -> Entry:
        key, held = self._link_key(link), job.links.get(link.chunk_id)
        if held is not None and not held.is_link and held.key != key:  # it came, and is lossy
            self._pool.release(job.links.pop(link.chunk_id))
        if link.chunk_id not in job.links:
            job.links[link.chunk_id], new = self._acquire(job, key, link.token_ids)
            if new and not late:
                self._load(job.request.tenant, job.links[link.chunk_id], EXACT)
        entry = job.links[link.chunk_id]
        if entry.chain is None:
            entry.chain, entry.parent_id = tuple(chain), link.parent_id
        to_come = entry.awaited if entry.load is not None else entry.state is State.LOADING
        if not late:
            entry.late = entry.late and entry.load is not None
        elif to_come and not entry.only_loaded:
            self._compute_late(entry)
        return entry

    def _link_key(self, link: Chunk) -> str:
        """Of the entry that stands for it in chains."""
        key = LINK + link.chunk_id
        own, apart = self._pool.get(link.chunk_id), self._pool.get(key)
        if own is None or (apart is not None and apart.ready):
            return key
        encoding = own.segment.encoding if own.segment is not None else ""
        return link.chunk_id if (encoding or self._loader.encoding) == EXACT else key

    def keep_link(self, job: Job, chunk: Chunk, segment: Segment) -> None:
        """Keeps what was just computed and stands in front of other chunks of the request."""
        if chunk.chunk_id not in job.links:
            entry, _ = self._acquire(job, LINK + chunk.chunk_id, chunk.token_ids)
            job.links[chunk.chunk_id] = entry
            if entry.state is State.LOADING:
                if entry in self._entries:
                    self._entries.remove(entry)
                self._pool.fill(entry, segment)

    def _chain_of(self, entry: Entry, holder: Job) -> tuple[Chunk, ...] | None:
        """The chunks in front of a missing one, by the request or by the source, which is asked once."""
        if entry.chain is None:
            request = holder.request
            chunk = next(c for c in request.chunks if c.chunk_id == entry.key)
            entry.parent_id = chunk.parent_id
            entry.chain = chain_of(chunk, (*request.links, *request.chunks))
            if entry.chain is None and entry.key not in self._looked_for:
                self._looked_for.add(entry.key)
                self._loader.find_chain(
                    chunk,
                    request.tenant,
                    request.prefix_ids,
                    lambda found: self._inbox.post(lambda: self._on_chain(found)),
                )
        return entry.chain

    def _on_chain(self, found: FoundChain) -> None:
        self._looked_for.discard(found.key)
        entry = self._pool.get(found.key)
        if entry is None or entry.ready or entry.chain is not None:
            return
        if found.chain is not None:
            entry.chain = found.chain
            return
        if entry.load is not None:
            entry.only_loaded = True
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
                    self._load(job.request.tenant, job.entries[chunk.chunk_id])

    def release_links(self, job: Job) -> None:
        """Of a request whose chunks are all there."""
        if job.links and isinstance(job, ContextJob) and all(entry.ready for entry in job.entries.values()):
            for link in job.links.values():
                self._pool.release(link)
            job.links.clear()

    def _acquire(self, job: Job, key: str, token_ids: TokenIds) -> tuple[Entry, bool]:
        return self._pool.acquire(key, token_ids, job.request.tenant)

    def check_invariants(self) -> None:
        for entry in self._entries:
            late = entry.state is State.STREAMING and entry.late
            assert entry.state is State.LOADING or late, "a missing chunk is not waiting"
