"""The requests alive, in order of arrival: waiting, running, or paused with their KV kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from shared.engine.jobs import GenerateJob, Job, PrefillJob
from shared.engine.kv.residency import Entry
from shared.engine.scheduler import Scheduler

_MAX_PREFILL_JOBS = 4


class RequestQueue:
    """Moves requests between its three places by the scheduler's decisions."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._by_id: dict[str, Job] = {}
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.paused: list[GenerateJob] = []

    def __contains__(self, job: Job) -> bool:
        return self._by_id.get(job.request.request_id) is job

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._by_id.values()))

    def get(self, request_id: str) -> Job | None:
        return self._by_id.get(request_id)

    def add(self, job: Job) -> None:
        self._by_id[job.request.request_id] = job
        self.waiting.append(job)

    def remove(self, job: Job) -> bool:
        """Takes it out; answers whether it had been admitted."""
        del self._by_id[job.request.request_id]
        if job in self.waiting:
            self.waiting.remove(job)
            return False
        if job in self.running:
            self.running.remove(job)
        else:
            self.paused = [paused for paused in self.paused if paused is not job]
        return True

    def admitted(self) -> list[Job]:
        return [*self.running, *self.paused]

    def generating(self) -> list[GenerateJob]:
        return [job for job in self.running if isinstance(job, GenerateJob)]

    def prefilling(self) -> list[PrefillJob]:
        return [job for job in self.running if isinstance(job, PrefillJob)]

    def holders(self, entry: Entry) -> Iterator[GenerateJob]:
        """Requests whose context names the entry, first come first."""
        return (job for job in self.admitted() if isinstance(job, GenerateJob) and entry.key in job.entries)

    def pause_overgrown(self) -> list[GenerateJob]:
        """While private KV is above its budget, pauses those that have nothing to do, then the youngest."""
        running = sorted(self.generating(), key=lambda job: job.idle)
        paused = running[len(running) - self._scheduler.num_to_pause([job.demand() for job in running]) :]
        for job in paused:
            self.running.remove(job)
            self.paused.append(job)
        return paused

    def resume_next(self) -> GenerateJob | None:
        """Resumes the one paused longest that has something to do, if there is room again."""
        job = next((job for job in self.paused if not job.idle), None)
        if job is None or not self._fits(job):
            return None
        self.paused.remove(job)
        self.running.append(job)
        return job

    def admit_next(self) -> Job | None:
        """Admits the oldest question if there is room for it, else the oldest prefill while few of them run.
        An undecided question that must wait for room holds up nobody behind it."""
        questions = [job for job in self.waiting if isinstance(job, GenerateJob)]
        prefill = next((job for job in self.waiting if isinstance(job, PrefillJob)), None)
        if all(job.idle for job in self.paused):
            for question in (*questions[:1], *[job for job in questions if not job.idle][:1]):
                if self._fits(question):
                    return self._admit(question)
        if prefill is not None and len(self.prefilling()) < _MAX_PREFILL_JOBS:
            return self._admit(prefill)
        return None

    def check_invariants(self) -> None:
        places = [*self.waiting, *self.running, *self.paused]
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

    def _admit(self, job: Job) -> Job:
        self.waiting.remove(job)
        self.running.append(job)
        return job

    def _fits(self, job: GenerateJob) -> bool:
        """Those that have nothing to do make room, but not for more of their kind: they hold chunks."""
        return self._scheduler.fits(
            job.demand(), (other.demand() for other in self.generating() if job.idle or not other.idle)
        )
