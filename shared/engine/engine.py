"""The engine: requests in, events out, one step at a time.

A step takes what arrived (requests, loaded segments, cancellations), lets the scheduler choose rows from all
branches of all requests, runs them through the model together, and samples. Decoding several branches per
step is not a mode: a step always decodes whatever branches there are (MultiDecode). ``submit`` and ``cancel``
may be called from any thread; everything else runs in the one thread that calls ``run``, ``step`` or
``generate``.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from shared.engine import admission
from shared.engine.decoding.answering import Answering
from shared.engine.decoding.exploring import Exploring
from shared.engine.decoding.forest import runnable, uproot
from shared.engine.decoding.text import Decode
from shared.engine.jobs import (
    BranchWork,
    ChunkWork,
    ForestJob,
    GenerateJob,
    Job,
    Node,
    PrefillJob,
    Sink,
    emit,
)
from shared.engine.kv.arrival import GivenUp, Patience
from shared.engine.kv.loader import Loader
from shared.engine.kv.reading import Arriving, Loaded
from shared.engine.kv.residency import Entry
from shared.engine.kv.segment_cache import SegmentCache
from shared.engine.kv.source import NoSource, SegmentSource
from shared.engine.model.model import LoadedModel
from shared.engine.model.passes import Ended, PassRunner
from shared.engine.prefilling import Prefilling
from shared.engine.request_queue import RequestQueue
from shared.engine.scheduler import Scheduler, Slice
from shared.engine_config import EngineConfig
from shared.errors import (
    Cancelled,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    KvquiltError,
    Overloaded,
    Unavailable,
)
from shared.generation.asked import GenerateRequest, PrefillRequest
from shared.generation.forest import Command, ForestRequest
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import DoneEvent, Event, FailedEvent

log = logging.getLogger(__name__)

_POLL_S = 0.1
_SOON_S = 0.005
_FAILED = "the engine failed on this request; the generator's log has the reason"


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. ``resident_chunk_ids``: least recently used first."""

    resident_chunk_ids: tuple[str, ...] = ()
    resident_bytes: int = 0
    private_bytes: int = 0
    running: int = 0
    paused: int = 0
    waiting: int = 0
    num_steps: int = 0


class Engine:
    """
    decode: token ids to text (special tokens skipped); None serves ids only, without text and stop strings.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig | None = None,
        source: SegmentSource | None = None,
        decode: Decode | None = None,
    ) -> None:
        self.model = model
        self.config = config or EngineConfig()
        self._stats = EngineStats()
        if self.config.num_threads:
            torch.set_num_threads(self.config.num_threads)
        self._has_text = decode is not None
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._loader = Loader(source or NoSource(), model.spec, self.config.loader_threads)
        self._scheduler = Scheduler(self.config)
        self._passes = PassRunner(model, self.config)
        self._requests = RequestQueue(self._scheduler)
        self._cache = SegmentCache(model.spec, self.config, self._loader, self._requests.holders)
        self._answering = Answering(model.spec, self.config, decode)
        self._exploring = Exploring(model.spec, self.config, decode)
        self._prefilling = Prefilling(
            model.spec, self._loader, self._requests, self._inbox.put, self._finish, self._fail
        )
        self._overlap_from_s = self.config.overlap_from_s if model.spec.device.type == "cpu" else 0.0
        self._closed = False
        # Set when something happened that a pass should not let wait while it waits itself.
        self._news = threading.Event()
        self._ahead: GenerateJob | None = None  # runs on segments that are still arriving, during this step

    # --- from any thread -----------------------------------------------------------------------------------

    def submit(self, request: GenerateRequest | PrefillRequest | ForestRequest, sink: Sink) -> None:
        """Hands a request over; its events go to ``sink``, on the engine's thread, the last one being done or
        failed.

        Raises:
            InvalidRequest, ContextTooLong: the request can never be served.
            Overloaded: too many requests wait already.
            Unavailable: the engine is closed.
        """
        admission.check(request, self.model.spec, self.config, has_text=self._has_text)
        if self._closed:
            raise Unavailable("the engine is shutting down; retry")
        if len(self._requests.waiting) + self._inbox.qsize() >= self.config.max_waiting:
            raise Overloaded(f"{self.config.max_waiting} requests wait already; retry later")
        job: Job
        if isinstance(request, GenerateRequest):
            job = GenerateJob(request, sink, kv_bytes_per_token=self.model.spec.kv_bytes_per_token)
            self._prefetch(request)
        elif isinstance(request, ForestRequest):
            asked = GenerateRequest(
                *request.context,
                questions=(),
                reuse=request.reuse,
                deadline_s=request.deadline_s,
                recompute=request.recompute,
                ape=request.ape,
            )
            job = ForestJob(asked, sink, kv_bytes_per_token=self.model.spec.kv_bytes_per_token, num_open=1)
            self._prefetch(asked)
        else:
            works: dict[str, ChunkWork] = {}
            for index, chunk in enumerate(request.chunks):
                works.setdefault(chunk.chunk_id, ChunkWork(chunk, [])).indices.append(index)
            job = PrefillJob(request, sink, works, num_open=len(works))
        self._post(lambda: self._arrive(job))

    def command(self, request_id: str, command: Command) -> None:
        """To a live forest; what became of it is told to the sink. A forest that has ended takes no
        notice."""
        self._post(lambda: self._command(request_id, command))

    def decide(self, request_id: str, reuse: ReuseMode, recompute: Recompute) -> None:
        """Of a request whose mode is deferred: from here on it is one of this mode, whether its KV is there
        already or not. A decision that does not fit it fails it; a request that is decided, or has ended,
        takes no notice."""
        self._post(lambda: self._decide(request_id, reuse, recompute))

    def cancel(self, request_id: str) -> None:
        """Ends a request, wherever it is; its memory returns before the next step. Unknown ids are
        ignored."""
        self._post(lambda: self._fail_by_id(request_id, Cancelled("the request was cancelled")))

    def stats(self) -> EngineStats:
        """As of the last step."""
        return self._stats

    def close(self) -> None:
        """Ends ``run``. Requests alive fail as unavailable; KV that is being stored is stored."""
        self._closed = True
        self._post(lambda: None)

    # --- the step loop -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Steps until ``close``, sleeping while there is nothing to do."""
        while not self._closed:
            if not self.step():
                self._wait()
        self.shut_down()

    def shut_down(self) -> None:
        """After the last step: fails what is alive and waits for the loader. Called by ``run``; by hand
        without it."""
        self._closed = True
        self._drain()
        for job in self._requests:
            self._fail(job, Unavailable("the engine shut down; retry"))
        self._loader.close()

    def generate(self, request: GenerateRequest | PrefillRequest) -> Iterator[Event]:
        """Library use, without threads of one's own: drives the steps until the request ends. One of a
        deferred mode waits for another thread's ``decide``.

        Raises:
            KvquiltError: the request failed.
        """
        events: deque[Event] = deque()
        self.submit(request, events.append)
        try:
            while True:
                if not events and not self.step() and not events:  # a step may only deliver
                    self._wait()
                while events:
                    event = events.popleft()
                    if isinstance(event, FailedEvent):
                        raise event.error
                    yield event
                    if isinstance(event, DoneEvent):
                        return
        finally:
            self.cancel(request.request_id)
            self._drain()

    @torch.inference_mode()
    def step(self) -> bool:
        """One scheduling step. False: nothing could run (requests may still wait for their KV)."""
        self._drain()
        self._expire()
        self._balance()
        self._cache.start_missing()
        self._prefilling.start_chunks()
        self._start_placed()
        self._obey_commands()
        passes = self._scheduler.pick(self._works() or self._start_arriving())
        for slices in passes:
            if not self._run_pass(slices):
                break
        self._ahead = None
        self._stats = self._snapshot(len(passes))
        return bool(passes)

    def check_invariants(self) -> None:
        """Recounts references and states from the requests alive. For tests, between steps."""
        self._requests.check_invariants()
        self._cache.check_invariants(self._requests.admitted())
        for job in self._requests.generating():
            assert not (job.started and job.undecided), "runs before it is decided what to compute anew"
            assert (
                not job.started
                or job.placed
                or all(p.segment.whole for b in job.branches() for p in b.seen())
            ), "runs on holes"

    # --- arrivals ------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        with contextlib.suppress(queue.Empty):
            soon = any(not job.started and job.arriving for job in self._requests.generating())
            self._inbox.get(timeout=_SOON_S if soon else _POLL_S if self._requests else None)()

    def _post(self, event: Callable[[], None]) -> None:
        self._inbox.put(event)
        self._news.set()

    def _prefetch(self, request: GenerateRequest) -> None:
        """With others in front of it, it may be a while until its chunks are loaded."""
        if request.reuse is not ReuseMode.FULL and (self._requests or not self._inbox.empty()):
            resident = set(self._stats.resident_chunk_ids)
            chunk_ids = {c.chunk_id: None for c in request.chunks if c.chunk_id not in resident}
            if chunk_ids:
                self._loader.prefetch(tuple(chunk_ids))

    def _drain(self) -> None:
        self._news.clear()
        while True:
            try:
                self._inbox.get_nowait()()
            except queue.Empty:
                return

    def _arrive(self, job: Job) -> None:
        request_id = job.request.request_id
        if self._requests.get(request_id) is not None:
            emit(job, FailedEvent(InvalidRequest(f"request_id {request_id!r} is in use by another request")))
        else:
            self._requests.add(job)

    def _expire(self) -> None:
        now = time.monotonic()
        for job in self._requests:
            if job.request.deadline_s is not None and now >= job.request.deadline_s:
                self._fail(
                    job,
                    DeadlineExceeded(
                        "the deadline passed before the answer was complete; set meta.deadline_ms higher"
                    ),
                )

    def _balance(self) -> None:
        """Pauses, resumes and admits, as room allows."""
        for job in self._requests.pause_overgrown():
            _move(job, torch.device("cpu"))
        while resumed := self._requests.resume_next():
            _move(resumed, self.model.spec.device)
        while admitted := self._requests.admit_next():
            self._admit(admitted)

    def _admit(self, job: Job) -> None:
        job.clock.admitted = time.monotonic()
        self._cache.acquire_prefix(job)
        if isinstance(job, PrefillJob):
            self._prefilling.admit(job)
            return
        try:
            self._cache.acquire_chunks(job, lambda event: self._on_loader(event, job))
        except InvalidRequest as error:
            self._fail(job, error)

    def _on_loader(self, event: Arriving | Loaded, job: GenerateJob) -> None:
        """On a loader's thread. The pass that waits for these very chunks is not disturbed by them."""
        if isinstance(event, Loaded):
            self._inbox.put(lambda: self._cache.on_loaded(event))
            if job is not self._ahead:
                self._news.set()
        elif self.config.pipelined:
            self._inbox.put(lambda: self._cache.on_arriving(event))

    # --- what can run --------------------------------------------------------------------------------------

    def _start_placed(self) -> None:
        for job in self._requests.generating():
            if job.undecided and job.placed:
                job.clock.tick_resident()
            elif not job.started and job.placed:
                self._start(job)

    def _start(self, job: GenerateJob) -> None:
        job.clock.placed = time.monotonic()
        job.started = True
        if isinstance(job, ForestJob):
            self._exploring.start(job)
        else:
            self._answering.start(job)

    def _decide(self, request_id: str, reuse: ReuseMode, recompute: Recompute) -> None:
        job = self._requests.get(request_id)
        if isinstance(job, GenerateJob) and job.undecided:
            try:
                job.decide(reuse, recompute)
            except InvalidRequest as error:
                self._fail(job, error)

    def _command(self, request_id: str, command: Command) -> None:
        job = self._requests.get(request_id)
        if isinstance(job, ForestJob):
            job.commands.append(command)

    def _obey_commands(self) -> None:
        """Of forests that run: whose chunks are placed, and whose KV is on the device."""
        for job in self._requests.generating():
            if not isinstance(job, ForestJob) or not job.started:
                continue
            try:
                self._exploring.obey(job)
            except Exception:
                log.exception("a command of request %s failed", job.request.request_id)
                self._fail(job, InternalError(_FAILED))
            else:
                self._finish_if_complete(job)

    def _start_arriving(self) -> list[BranchWork]:
        """Nothing else can run, so a pass that waits for layers holds up nobody: starts the oldest request
        whose chunks arrive."""
        generating = (job for job in self._requests.generating() if not isinstance(job, ForestJob))
        arriving = (job for job in generating if not job.started and job.arriving)
        job = next((job for job in arriving if job.remaining_s >= self._overlap_from_s), None)
        if job is None:
            return []
        self._start(job)
        self._ahead = job
        return self._works()

    def _works(self) -> list[BranchWork]:
        """Branches with tokens to compute whose ancestors are complete; answers and questions before chunks
        of prefills."""
        works = self._cache.works()
        for job in self._requests.generating():
            works += [
                BranchWork(o.branch, o, job) for o in (*job.questions, *job.answers) if runnable(o.branch)
            ]
        for prefill in self._requests.prefilling():
            works += [
                BranchWork(w.branch, w, prefill)
                for w in prefill.in_flight.values()
                if w.branch and w.branch.pending
            ]
        return works

    # --- a forward pass ------------------------------------------------------------------------------------

    def _run_pass(self, slices: list[Slice[BranchWork]]) -> bool:
        """False: the pass was given up, and with it the rest of the step."""
        try:
            ended = self._passes.run(slices, Patience(self._news.is_set))
        except GivenUp as reason:
            assert self._ahead is not None, "a pass waited for layers beside others"
            self._ahead.patient = reason.stalled
            uproot(self._ahead)
            return False
        except Exception:
            log.exception("a step of %d branches failed", len(slices))
            self._fail_works([s.work for s in slices])
            return True
        for one in ended:
            self._on_computed(one)
        return True

    def _on_computed(self, ended: Ended) -> None:
        owner, job, logits_V = ended.work.owner, ended.work.job, ended.logits_V
        if isinstance(owner, Entry):
            self._cache.on_computed(owner)
        elif isinstance(owner, ChunkWork):
            assert isinstance(job, PrefillJob)
            self._prefilling.on_computed(job, owner)
        elif isinstance(job, GenerateJob) and job in self._requests:  # else it failed earlier in this pass
            if isinstance(job, ForestJob) and isinstance(owner, Node):
                assert logits_V is not None
                self._exploring.on_computed(job, owner, logits_V, ended.chosen)
            else:
                assert not isinstance(owner, Node)
                self._answering.on_computed(job, owner, logits_V, ended.chosen)
            self._finish_if_complete(job)

    # --- ends ----------------------------------------------------------------------------------------------

    def _finish_if_complete(self, job: GenerateJob) -> None:
        if job.num_open == 0:
            self._finish(job)

    def _finish(self, job: Job) -> None:
        self._forget(job)
        now = time.monotonic()
        if isinstance(job, GenerateJob):
            emit(job, DoneEvent(job.usage(), job.clock.timings(now)))
        else:
            total = sum(len(c.token_ids) for c in job.request.chunks)
            emit(job, DoneEvent(admission.prefill_usage(total), job.clock.timings(now)))

    def _fail_by_id(self, request_id: str, error: KvquiltError) -> None:
        job = self._requests.get(request_id)
        if job is not None:
            self._fail(job, error)

    def _fail(self, job: Job, error: KvquiltError) -> None:
        self._forget(job)
        emit(job, FailedEvent(error))

    def _fail_works(self, works: list[BranchWork]) -> None:
        jobs: dict[str, Job] = {}
        for work in works:
            if isinstance(work.owner, Entry):
                jobs |= {
                    job.request.request_id: job for job in self._requests.admitted() if work.owner in job.held
                }
            elif work.job is not None:
                jobs[work.job.request.request_id] = work.job
        for job in jobs.values():
            self._fail(job, InternalError(_FAILED))

    def _forget(self, job: Job) -> None:
        """Takes the request out and returns what it held."""
        if self._requests.remove(job):
            self._cache.release(job)

    def _snapshot(self, num_passes: int) -> EngineStats:
        branches = [branch for job in self._requests.admitted() for branch in job.branches()]
        return EngineStats(
            resident_chunk_ids=self._cache.chunk_ids(),
            resident_bytes=self._cache.num_bytes,
            private_bytes=sum(branch.segment.num_bytes for branch in branches),
            running=len(self._requests.running),
            paused=len(self._requests.paused),
            waiting=len(self._requests.waiting),
            num_steps=self._stats.num_steps + (num_passes > 0),
        )


def _move(job: GenerateJob, device: torch.device) -> None:
    for branch in job.branches():
        branch.segment.move(device)
