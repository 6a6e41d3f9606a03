"""Ends requests: complete, failed, or with the pass that failed them; and makes room before one fails because
memory is out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from shared.engine.jobs.context import ContextJob
from shared.engine.jobs.job import BranchWork, Job
from shared.engine.kv.conversations import Conversations
from shared.engine.kv.memory import Memory, out_of_memory
from shared.engine.kv.segment_cache import SegmentCache
from shared.engine.model.out_of_memory import told_alike
from shared.engine.request_queue import RequestQueue
from shared.engine.stage_times import stages_of
from shared.errors import Cancelled, DeadlineExceeded, InternalError, KvquiltError
from shared.generation.told import DoneEvent, FailedEvent

log = logging.getLogger(__name__)
FAILED = "the engine failed on this request; the generator's log has the reason"


@dataclass(frozen=True, slots=True)
class Endings:
    """Takes requests out, returns what they held, and tells them."""

    requests: RequestQueue
    cache: SegmentCache
    conversations: Conversations
    memory: Memory

    def finish(self, job: Job) -> None:
        self._forget(job)
        now = time.monotonic()
        stages, loads = stages_of(job, now), job.clock.loads()
        done = DoneEvent(job.usage(), job.clock.timings(now), stages=stages, loads=loads, counts=job.counts())
        job.emit(done)
        self._keep(job)

    def fail(self, job: Job, error: KvquiltError) -> None:
        self._forget(job)
        job.emit(FailedEvent(error, stages_of(job, time.monotonic())))
        if isinstance(error, Cancelled | DeadlineExceeded):  # after others nobody knows what is left
            self._keep(job)

    def fail_works(self, works: Iterable[BranchWork], error: KvquiltError | None = None) -> None:
        """All requests that these were for; what is computed beside its load is only given up. ``error``
        None: something broke."""
        jobs: dict[str, Job] = {}
        for work in works:
            if work.late and self.cache.missing.spare(work.branch):
                continue
            if work.job is None:
                waiting = [
                    j for j in self.requests.admitted() if any(e.branch is work.branch for e in j.held)
                ]
                jobs |= {job.request.request_id: job for job in waiting}
            else:
                jobs[work.job.request.request_id] = work.job
        for job in jobs.values():
            self.fail(job, error or InternalError(FAILED))

    def with_room(self, job: Job, act: Callable[[], None], undo: Callable[[], None] = lambda: None) -> None:
        """Does what takes memory of the device for a request. If there is not enough, once more with all
        unused KV given up; then the request fails. ``undo``: what a first try may have left behind."""
        try:
            with told_alike():
                act()
        except torch.OutOfMemoryError:
            self.make_room()
            undo()
            try:
                with told_alike():
                    act()
            except torch.OutOfMemoryError:
                self.fail(job, out_of_memory())

    def make_room(self) -> None:
        """Gives up all unused KV."""
        num_bytes = self.cache.evict_unused() + self.conversations.clear()
        log.warning("the device is out of memory; %d bytes of unused KV are given up", num_bytes)
        self.memory.trim()

    def _forget(self, job: Job) -> None:
        if self.requests.remove(job):
            self.cache.release(job)

    def _keep(self, job: Job) -> None:
        """What was said, for the next turn. Whoever asked does not wait for it."""
        if isinstance(job, ContextJob) and job.turn is not None:
            job.turn.keep()
