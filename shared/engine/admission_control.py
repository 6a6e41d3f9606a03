"""Admits requests as room allows, pauses and resumes them, and ends those that are out of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from shared.engine.endings import Endings
from shared.engine.jobs.context import ContextJob
from shared.engine.jobs.prefill import PrefillJob
from shared.engine.kv.chunk_reads import FirstLayer, Loaded
from shared.engine.kv.conversations import Conversations
from shared.engine.kv.loader import ChunkLoad
from shared.engine.kv.segment_cache import SegmentCache
from shared.engine.prefills import Prefills
from shared.engine.request_queue import RequestQueue
from shared.errors import DeadlineExceeded, InvalidRequest


@dataclass(frozen=True, slots=True)
class AdmissionControl:
    """``on_loader`` is called on a loader's thread, with what it has for a request."""

    device: torch.device
    requests: RequestQueue
    cache: SegmentCache
    conversations: Conversations
    prefills: Prefills
    endings: Endings
    on_loader: Callable[[FirstLayer | Loaded, ChunkLoad, ContextJob], None]

    def expire(self) -> None:
        now = time.monotonic()
        for job in self.requests:
            if job.request.deadline_s is not None and now >= job.request.deadline_s:
                self.endings.fail(
                    job,
                    DeadlineExceeded(
                        "the deadline passed before the answer was complete; set meta.deadline_ms higher"
                    ),
                )

    def balance(self) -> None:
        """Pauses, resumes and admits, as room allows. What is kept of conversations goes before anybody has
        to wait."""
        for job in self.requests.pause_overgrown():
            _move(job, torch.device("cpu"))
        while resumed := self.requests.resume_next():
            self.endings.with_room(resumed, partial(_move, resumed, self.device))
        while admitted := self.requests.admit_next() or self.requests.admit_prefill():
            admitted.clock.admitted = time.monotonic()
            self.endings.with_room(admitted, partial(self._acquire, admitted))
        self.conversations.give_way()

    def _acquire(self, job: ContextJob | PrefillJob) -> None:
        self.cache.acquire_prefix(job)
        if isinstance(job, PrefillJob):
            self.prefills.admit(job)
            return
        try:
            self.cache.acquire_chunks(job, lambda event, load: self.on_loader(event, load, job))
        except InvalidRequest as error:
            self.endings.fail(job, error)


def _move(job: ContextJob, device: torch.device) -> None:
    for branch in job.branches():
        branch.segment.move(device)
