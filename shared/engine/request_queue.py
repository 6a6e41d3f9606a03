"""The requests alive, in order of arrival: waiting, running, or paused with their KV kept. Of those that wait
the next is of the tenant that has the fewest admitted, and of these the most urgent
(``shared.admission.priority``), of equals the oldest."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from shared.admission.priority import first_of, went_first
from shared.engine.jobs.context import ContextJob
from shared.engine.jobs.job import Job
from shared.engine.jobs.prefill import PrefillJob
from shared.engine.kv.residency import Entry
from shared.engine.scheduler import Scheduler

_MAX_PREFILL_JOBS = 4
JobT = TypeVar("JobT", bound=Job)


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
        self.num_pauses = 0

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

    @property
    def num_to_prefill(self) -> int:
        """Tokens of questions that are computed before those of one that comes now."""
        jobs = (*self.waiting, *self.running)
        return sum(job.num_to_prefill for job in jobs if not (job.idle or job.request.idle))

    def private_bytes(self) -> int:
        """Of private KV, what those that run take, or are about to."""
        return sum(job.demand().private_bytes for job in self.running)

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
        self.num_pauses += len(paused)
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
        """Admits the next question if there is room for it. An undecided one that must wait for room holds
        up nobody behind it."""
        if not self.waiting or any(not job.idle for job in self.paused):
            return None
        held = Counter(job.request.tenant for job in (*self.running, *self.paused))
        for job in (_next(self.waiting, held), _next([j for j in self.waiting if not j.idle], held)):
            if job is not None and self._fits(job):
                _call(job, self.waiting)
                self.running.append(job)
                return job
        return None

    def admit_prefill(self) -> PrefillJob | None:
        """Admits the next prefill while few of them run."""
        held = Counter(job.request.tenant for job in self.prefilling)
        job = _next(self.waiting_prefills, held)
        if job is None or len(self.prefilling) >= _MAX_PREFILL_JOBS:
            return None
        _call(job, self.waiting_prefills)
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


def _next(waiting: Collection[JobT], held: Mapping[str, int]) -> JobT | None:
    """The first of the tenant that holds the least, of equals of whoever has waited longest."""
    oldest = min(waiting, key=lambda job: held.get(job.request.tenant, 0), default=None)
    return None if oldest is None else first_of(_line(waiting, oldest))


def _call(job: JobT, waiting: deque[JobT]) -> None:
    went_first(job, _line(waiting, job))
    waiting.remove(job)


def _line(waiting: Iterable[JobT], job: JobT) -> list[JobT]:
    """Those of its tenant."""
    return [other for other in waiting if other.request.tenant == job.request.tenant]
