"""Runs passes over the branches of live requests that can run, and hands the results back to them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from shared.engine.decoding.forest import uproot
from shared.engine.endings import FAILED, Endings
from shared.engine.inbox import Inbox
from shared.engine.jobs.context import ContextJob
from shared.engine.jobs.job import BranchWork, Computed, Job
from shared.engine.kv.arrival import GivenUp, Patience
from shared.engine.kv.memory import out_of_memory
from shared.engine.kv.segment_cache import SegmentCache
from shared.engine.model.out_of_memory import told_alike
from shared.engine.model.pass_times import PassTimes
from shared.engine.model.passes import PassRunner
from shared.engine.request_queue import RequestQueue
from shared.engine.scheduler import Scheduler, Slice
from shared.engine.speculation import Speculation
from shared.errors import InternalError, KvquiltError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Steps:
    """``overlap_from_s``: see ``EngineConfig``; ``_ahead`` runs on segments that are still arriving, during
    this step."""

    passes: PassRunner
    overlap_from_s: float
    scheduler: Scheduler
    speculation: Speculation
    requests: RequestQueue
    cache: SegmentCache
    endings: Endings
    inbox: Inbox
    times: PassTimes
    _ahead: ContextJob | None = None

    def runs_ahead(self, job: ContextJob) -> bool:
        """It runs on segments that are still arriving."""
        return job is self._ahead

    def start_placed(self) -> None:
        for job in list(self.requests.running):
            if job.undecided and job.placed:
                job.clock.tick_resident()
            elif not job.started and job.placed:
                self._start(job)

    def obey(self) -> None:
        """Commands to requests that run: whose chunks are placed, and whose KV is on the device."""
        for job in [job for job in self.requests.running if job.started]:
            try:
                with told_alike():
                    job.obey()
            except torch.OutOfMemoryError:
                self.endings.make_room()
                self.endings.fail(job, out_of_memory())
            except KvquiltError as error:
                self.endings.fail(job, error)
            except Exception:
                log.exception("a command of request %s failed", job.request.request_id)
                self.endings.fail(job, InternalError(FAILED))
            else:
                self._finish_if_complete(job)

    def run(self) -> bool:
        """One step's passes. False: nothing could run."""
        works = self._works() or self._start_arriving()
        passes = self.scheduler.pick(works, queued=self.requests.num_waiting > 0)
        for slices in passes:
            if not self._run_pass(self.speculation.fill(slices)):
                break
        self._ahead = None
        return bool(passes)

    def _start(self, job: ContextJob) -> None:
        job.clock.placed = time.monotonic()
        job.started = True
        self.endings.with_room(job, job.start, undo=job.questions.clear)

    def _start_arriving(self) -> list[BranchWork]:
        """Nothing else can run, so a pass that waits for layers holds up nobody: starts the oldest request
        whose chunks arrive."""
        arriving = (job for job in self.requests.running if not job.started and job.arriving)
        job = next((job for job in arriving if job.remaining_s >= self.overlap_from_s), None)
        if job is None:
            return []
        self._start(job)
        self._ahead = job
        return self._works()

    def _works(self) -> list[BranchWork]:
        """Branches with tokens to compute whose ancestors are complete; answers and questions before chunks
        of prefills."""
        jobs = (*self.requests.running, *self.requests.prefilling)
        return [*self.cache.works(), *(work for job in jobs for work in job.works())]

    def choose_late(self) -> None:
        """Chooses chunks that are computed beside their load: none while requests wait."""
        free = 0 if self.requests.num_waiting else self.scheduler.late_rows
        waiting = [job for job in self.requests.running if not job.started and not job.request.idle]
        if free and any(entry.awaited for job in waiting for entry in job.held):
            ahead = sum(work.num_pending for work in self._works())
            self.cache.missing.choose_late(waiting, free, ahead)

    def _run_pass(self, slices: list[Slice[BranchWork]], last_try: bool = False) -> bool:
        """False: the pass was given up, and with it the rest of the step. ``last_try``: there is no more room
        to be made."""
        try:
            with self._timed(slices):
                ended = self.passes.run(slices, Patience(lambda: self.inbox.has_news))
        except GivenUp as reason:
            assert self._ahead is not None, "a pass waited for layers beside others"
            self._ahead.patient = reason.stalled
            uproot(self._ahead)
            return False
        except torch.OutOfMemoryError:
            return self._run_with_room(slices, last_try)
        except Exception:
            log.exception("a step of %d branches failed", len(slices))
            self.endings.fail_works([s.work for s in slices])
            return True
        for piece, computed in ended:
            job = piece.work.job
            if job is not None and job not in self.requests:
                continue  # it failed earlier in this pass
            self._continue(piece, computed)
        return True

    def _timed(self, slices: Sequence[Slice[BranchWork]]) -> AbstractContextManager[None]:
        """Of passes that prefill, and wait for no layers, where late chunks may be computed."""
        prefills = any(piece.num_rows > 1 for piece in slices) and slices[0].work.own_pass is None
        if not self.scheduler.late_rows or not prefills or self._ahead is not None:
            return nullcontext()
        return self.times.measured(sum(piece.num_rows for piece in slices))

    def _continue(self, piece: Slice[BranchWork], computed: Sequence[Computed]) -> None:
        work = piece.work
        try:
            with told_alike():
                self.speculation.tell(piece, computed)
        except torch.OutOfMemoryError:
            self.endings.make_room()
            self.endings.fail_works([work], out_of_memory())
        except KvquiltError as error:
            self.endings.fail_works([work], error)
        else:
            if work.job is not None:
                self._finish_if_complete(work.job)

    def _run_with_room(self, slices: list[Slice[BranchWork]], last_try: bool) -> bool:
        """A pass for which memory did not suffice, and which moved no token: once more with all unused KV
        given up, then request by request, so that only what does not fit alone fails."""
        if not last_try:
            self.endings.make_room()
            return self._run_pass(slices, last_try=True)
        parts: dict[int, list[Slice[BranchWork]]] = {}
        for one in slices:
            parts.setdefault(id(one.work.job or one.work.branch), []).append(one)
        if len(parts) == 1:
            self.endings.fail_works([one.work for one in slices], out_of_memory())
            return True
        alive = (
            part for part in parts.values() if part[0].work.job is None or part[0].work.job in self.requests
        )
        return all(self._run_pass(part, last_try=True) for part in alive)

    def _finish_if_complete(self, job: Job) -> None:
        if job.num_open == 0:
            self.endings.finish(job)
