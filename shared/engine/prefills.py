"""The life of prefill requests: which chunks are stored already, which are computed, when all are durable."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from shared.engine.decoding.forest import chunk_branch
from shared.engine.endings import Endings
from shared.engine.inbox import Inbox
from shared.engine.jobs.job import Computed
from shared.engine.jobs.prefill import ChunkWork, PrefillJob
from shared.engine.kv.loader import Checked, Loader, Saved
from shared.engine.kv.segment_cache import SegmentCache
from shared.engine.kv.source import ComputedChunk
from shared.engine.model.spec import ModelSpec
from shared.engine.request_queue import RequestQueue
from shared.generation.told import ChunkStoredEvent

_MAX_CHUNKS_IN_FLIGHT = 8


@dataclass(frozen=True, slots=True)
class Prefills:
    """``inbox`` brings the loader's news to the engine's thread."""

    spec: ModelSpec
    loader: Loader
    requests: RequestQueue
    inbox: Inbox
    endings: Endings
    cache: SegmentCache

    def admit(self, job: PrefillJob) -> None:
        lens = {key: len(work.chunk.token_ids) for key, work in job.works_by_id.items()}
        self.loader.verify(
            lens,
            lambda checked: self.inbox.post(lambda: self._on_checked(checked, job)),
            job.request.encoding,
            job.request.tenant,
        )

    def start_chunks(self) -> None:
        for job in list(self.requests.prefilling):
            if job.prefix is None or job.prefix.ready:
                self.endings.with_room(job, partial(self._start_chunks, job))

    def _start_chunks(self, job: PrefillJob) -> None:
        for work in list(job.to_compute):
            if len(job.in_flight) >= _MAX_CHUNKS_IN_FLIGHT:
                return
            links = None if job.awaits(work.chain) else self.cache.missing.links(job, work.chain)
            if links is not None:
                work.branch = chunk_branch(self.spec, job.prefix, work.chunk.token_ids, links)
                job.in_flight[work.chunk.chunk_id] = work
                job.times.first_started = job.times.first_started or time.monotonic()
                job.to_compute.remove(work)

    def on_computed(self, job: PrefillJob, work: ChunkWork, _: Computed) -> None:
        assert work.branch is not None
        job.times.tick_computed(len(work.chunk.token_ids))
        work.there = True
        if work.chunk.chunk_id in job.parents:
            self.cache.missing.keep_link(job, work.chunk, work.branch.segment)
        self.loader.save(
            ComputedChunk(
                work.chunk.chunk_id,
                job.request.prefix_ids,
                work.chunk.token_ids,
                work.branch.segment,
                replace=work.broken,
                write_back=False,
                encoding=job.request.encoding,
                tenant=job.request.tenant,
                parent_id=work.chunk.parent_id,
            ),
            lambda saved: self.inbox.post(lambda: self._on_saved(saved, job)),
        )

    def _on_checked(self, checked: Checked, job: PrefillJob) -> None:
        """A chunk was looked for in the store and, where found, read and verified."""
        if job not in self.requests:
            return
        job.times.checked = time.monotonic()
        work = job.works_by_id[checked.key]
        if checked.intact:
            work.there = True
            self._stored(job, work, existed=True)
        else:
            work.broken = checked.broken
            job.to_compute.append(work)

    def _on_saved(self, saved: Saved, job: PrefillJob) -> None:
        if job not in self.requests:
            return
        job.times.last_stored = time.monotonic()
        work = job.in_flight.pop(saved.key)
        if saved.error is not None:
            self.endings.fail(job, saved.error)
        else:
            self._stored(job, work, existed=False)

    def _stored(self, job: PrefillJob, work: ChunkWork, existed: bool) -> None:
        for index in work.indices:
            job.emit(ChunkStoredEvent(index, existed))
        work.branch = None  # its KV returns now, not when the last chunk of a long request is stored
        job.num_open -= 1
        if job.num_open == 0:
            self.endings.finish(job)
