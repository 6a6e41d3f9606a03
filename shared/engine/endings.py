"""How requests end: complete, failed, or with the pass that failed them."""

from __future__ import annotations

import time
from collections.abc import Iterable

from shared.engine.jobs.job import BranchWork, Job
from shared.engine.kv.segment_cache import SegmentCache
from shared.engine.request_queue import RequestQueue
from shared.errors import InternalError, KvquiltError
from shared.generation.told import DoneEvent, FailedEvent

FAILED = "the engine failed on this request; the generator's log has the reason"


class Endings:
    """Takes requests out, returns what they held, and tells them."""

    def __init__(self, requests: RequestQueue, cache: SegmentCache) -> None:
        self._requests = requests
        self._cache = cache

    def finish(self, job: Job) -> None:
        self._forget(job)
        job.emit(DoneEvent(job.usage(), job.clock.timings(time.monotonic())))

    def fail(self, job: Job, error: KvquiltError) -> None:
        self._forget(job)
        job.emit(FailedEvent(error))

    def fail_works(self, works: Iterable[BranchWork], error: KvquiltError | None = None) -> None:
        """All requests that these were for. ``error`` None: something broke."""
        jobs: dict[str, Job] = {}
        for work in works:
            if work.job is None:
                waiting = [
                    j for j in self._requests.admitted() if any(e.branch is work.branch for e in j.held)
                ]
                jobs |= {job.request.request_id: job for job in waiting}
            else:
                jobs[work.job.request.request_id] = work.job
        for job in jobs.values():
            self.fail(job, error or InternalError(FAILED))

    def _forget(self, job: Job) -> None:
        if self._requests.remove(job):
            self._cache.release(job)
