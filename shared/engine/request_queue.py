"""The requests alive, in order of arrival: waiting, running, or paused with their KV kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from shared.engine.jobs.context import ContextJob
from shared.engine.jobs.job import Job
from shared.engine.jobs.prefill import PrefillJob
from shared.engine.kv.residency import Entry
from shared.engine.scheduler import Scheduler

_MAX_PREFILL_JOBS = 4


class RequestQueue:
    """Moves requests between its places by the scheduler's decisions."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._by_id: dict[str, Job] = {}
        self.waiting: deque[ContextJob] = deque()
        self.running: list[ContextJob] = []
        self.paused: list[ContextJob] = []
        self.waiting_prefills: deque[PrefillJob] = deque()
        self.prefilling: list[PrefillJob] = []

    def __contains__(self, job: Job) -> bool:
        return self._by_id.get(job.request.request_id) is job

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._by_id.values()))

    def get(self, request_id: str) -> Job | None:
        return self._by_id.get(request_id)

    def add(self, job: ContextJob | PrefillJob) -> None:
        self._by_id[job.request.request_id] = job
        if isinstance(job, PrefillJob):
            self.waiting_prefills.append(job)
        else:
            self.waiting.append(job)

    def remove(self, job: Job) -> bool:
        """Takes it out; answers whether it had been admitted."""
        del self._by_id[job.request.request_id]
        waited = job in self.waiting or job in self.waiting_prefills
        for place in (self.waiting, self.running, self.paused, self.waiting_prefills, self.prefilling):
            if job in place:
                place.remove(job)  # type: ignore[arg-type]
        return not waited

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.waiting_prefills)

    def admitted(self) -> list[Job]:
        return [*self.running, *self.prefilling, *self.paused]

    def holders(self, entry: Entry) -> Iterator[Job]:
        """Requests that wait for the entry or use it, questions before prefills, first come first."""
        jobs = (*self.running, *self.paused, *self.prefilling)
        return (job for job in jobs if any(one is entry for one in job.held))

    def pause_overgrown(self) -> list[ContextJob]:
        """While private KV is above its budget, pauses those that have nothing to do, then the youngest."""
        running = sorted(self.running, key=lambda job: job.idle)
        paused = running[len(running) - self._scheduler.num_to_pause([job.demand() for job in running]) :]
        for job in paused:
            self.running.remove(job)
            self.paused.append(job)
        return paused

    def resume_next(self) -> ContextJob | None:
        """Resumes the one paused longest that has something to do, if there is room again."""
        job = next((job for job in self.paused if not job.idle), None)
        if job is None or not self._fits(job):
            return None
        self.paused.remove(job)
        self.running.append(job)
        return job

    def admit_next(self) -> ContextJob | None:
        """Admits the oldest question if there is room for it. An undecided one that must wait for room holds
        up nobody behind it."""
        if any(not job.idle for job in self.paused):
            return None
        oldest = next(iter(self.waiting), None)
        ready = next((job for job in self.waiting if not job.idle), None)
        for job in (oldest, ready):
            if job is not None and self._fits(job):
                self.waiting.remove(job)
                self.running.append(job)
                return job
        return None

    def admit_prefill(self) -> PrefillJob | None:
        """Admits the oldest prefill while few of them run."""
        if not self.waiting_prefills or len(self.prefilling) >= _MAX_PREFILL_JOBS:
            return None
        job = self.waiting_prefills.popleft()
        self.prefilling.append(job)
        return job

    def check_invariants(self) -> None:
        places = [*self.waiting, *self.waiting_prefills, *self.admitted()]
        assert sorted(self._by_id) == sorted(job.request.request_id for job in places), (
            "a request is nowhere or twice"
        )
        for job in self.admitted():
            for branch in job.branches():
                assert branch.segment.length <= branch.segment.capacity, "a branch outgrew its buffer"
                seen = branch.seen() if branch.segment.length else []
                assert all(p.num_tokens <= p.segment.length for p in seen), (
                    "a branch saw what was not computed yet"
                )

    def _fits(self, job: ContextJob) -> bool:
        """Those that have nothing to do make room, but not for more of their kind: they hold chunks."""
        return self._scheduler.fits(
            job.demand(), (other.demand() for other in self.running if job.idle or not other.idle)
        )
