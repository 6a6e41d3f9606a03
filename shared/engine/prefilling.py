"""The life of prefill requests: which chunks are stored already, which are computed, when all are durable."""

from __future__ import annotations

from shared.engine.decoding.forest import chunk_branch
from shared.engine.endings import Endings
from shared.engine.inbox import Inbox
from shared.engine.jobs.prefill import ChunkWork, PrefillJob
from shared.engine.kv.loader import Checked, Loader, Saved
from shared.engine.model.spec import ModelSpec
from shared.engine.request_queue import RequestQueue
from shared.generation.told import ChunkStoredEvent

_MAX_CHUNKS_IN_FLIGHT = 8


class Prefilling:
    """``inbox`` brings the loader's news to the engine's thread."""

    def __init__(
        self,
        spec: ModelSpec,
        loader: Loader,
        requests: RequestQueue,
        inbox: Inbox,
        endings: Endings,
    ) -> None:
        self._spec = spec
        self._loader = loader
        self._requests = requests
        self._inbox = inbox
        self._endings = endings

    def admit(self, job: PrefillJob) -> None:
        lens = {key: len(work.chunk.token_ids) for key, work in job.works_by_id.items()}
        self._loader.verify(
            lens,
            lambda checked: self._inbox.post(lambda: self._on_checked(checked, job)),
            job.request.encoding,
        )

    def start_chunks(self) -> None:
        for job in self._requests.prefilling:
            if job.prefix is not None and not job.prefix.ready:
                continue
            while job.to_compute and len(job.in_flight) < _MAX_CHUNKS_IN_FLIGHT:
                work = job.to_compute.popleft()
                work.branch = chunk_branch(self._spec, job.prefix, work.chunk.token_ids)
                job.in_flight[work.chunk.chunk_id] = work

    def on_computed(self, job: PrefillJob, work: ChunkWork) -> None:
        assert work.branch is not None
        self._loader.save(
            work.chunk.chunk_id,
            job.request.prefix_ids,
            work.chunk.token_ids,
            work.branch.segment,
            work.broken,
            write_back=False,
            encoding=job.request.encoding,
            done=lambda saved: self._inbox.post(lambda: self._on_saved(saved, job)),
        )

    def _on_checked(self, checked: Checked, job: PrefillJob) -> None:
        """A chunk was looked for in the store and, where found, read and verified."""
        if job not in self._requests:
            return
        work = job.works_by_id[checked.key]
        if checked.intact:
            self._stored(job, work, existed=True)
        else:
            work.broken = checked.broken
            job.to_compute.append(work)

    def _on_saved(self, saved: Saved, job: PrefillJob) -> None:
        if job not in self._requests:
            return
        work = job.in_flight.pop(saved.key)
        if saved.error is not None:
            self._endings.fail(job, saved.error)
        else:
            self._stored(job, work, existed=False)

    def _stored(self, job: PrefillJob, work: ChunkWork, existed: bool) -> None:
        for index in work.indices:
            job.emit(ChunkStoredEvent(index, existed))
        work.branch = None  # its KV returns now, not when the last chunk of a long request is stored
        job.num_open -= 1
        if job.num_open == 0:
            self._endings.finish(job)
