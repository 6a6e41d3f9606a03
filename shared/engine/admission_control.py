"""Admits requests as room allows, pauses and resumes them, and ends those that are out of time."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from shared.engine.endings import Endings
from shared.engine.jobs.context import ContextJob
from shared.engine.kv.chunk_reads import Arriving, Loaded
from shared.engine.kv.segment_cache import SegmentCache
from shared.engine.prefilling import Prefilling
from shared.engine.request_queue import RequestQueue
from shared.errors import DeadlineExceeded, InvalidRequest


class Admitting:
    """``on_loader`` is called on a loader's thread, with what it has for a request."""

    def __init__(
        self,
        device: torch.device,
        requests: RequestQueue,
        cache: SegmentCache,
        prefilling: Prefilling,
        endings: Endings,
        on_loader: Callable[[Arriving | Loaded, ContextJob], None],
    ) -> None:
        self._device = device
        self._requests = requests
        self._cache = cache
        self._prefilling = prefilling
        self._endings = endings
        self._on_loader = on_loader

    def expire(self) -> None:
        now = time.monotonic()
        for job in self._requests:
            if job.request.deadline_s is not None and now >= job.request.deadline_s:
                self._endings.fail(
                    job,
                    DeadlineExceeded(
                        "the deadline passed before the answer was complete; set meta.deadline_ms higher"
                    ),
                )

    def balance(self) -> None:
        """Pauses, resumes and admits, as room allows."""
        for job in self._requests.pause_overgrown():
            _move(job, torch.device("cpu"))
        while resumed := self._requests.resume_next():
            _move(resumed, self._device)
        while admitted := self._requests.admit_next():
            self._admit(admitted)
        while prefill := self._requests.admit_prefill():
            prefill.clock.admitted = time.monotonic()
            self._cache.acquire_prefix(prefill)
            self._prefilling.admit(prefill)

    def _admit(self, job: ContextJob) -> None:
        job.clock.admitted = time.monotonic()
        self._cache.acquire_prefix(job)
        try:
            self._cache.acquire_chunks(job, lambda event: self._on_loader(event, job))
        except InvalidRequest as error:
            self._endings.fail(job, error)


def _move(job: ContextJob, device: torch.device) -> None:
    for branch in job.branches():
        branch.segment.move(device)
