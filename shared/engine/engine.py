"""The engine: requests in, events out, one step at a time.

A step takes what arrived (requests, loaded segments, cancellations), lets the scheduler choose rows from all branches of all
requests, runs them through the model together, and samples. Decoding several branches per step is not a mode: a step always
decodes whatever branches there are (MultiDecode). ``submit`` and ``cancel`` may be called from any thread; everything else runs
in the one thread that calls ``run``, ``step`` or ``generate``.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from shared.engine import admission
from shared.engine.attention import Lane, StepPlan, kernel_for
from shared.engine.config import EngineConfig
from shared.engine.jobs import Answer, BranchWork, ChunkWork, GenerateJob, Job, PrefillJob, Question, Sink
from shared.engine.loader import Loaded, Loader, Saved
from shared.engine.model import LoadedModel
from shared.engine.residency import Entry, Pool, State
from shared.engine.rope import Rotation
from shared.engine.sampling import sample
from shared.engine.scheduler import Demand, Scheduler, Slice
from shared.engine.segment import Branch, Placement
from shared.engine.source import NoSource, SegmentSource
from shared.engine.text import Decode, TextStream
from shared.engine.types import (
    BranchDoneEvent,
    ChunkStoredEvent,
    DoneEvent,
    Event,
    FailedEvent,
    FinishReason,
    GenerateRequest,
    PrefillRequest,
    ReuseMode,
    TokenEvent,
)
from shared.errors import Cancelled, DeadlineExceeded, InternalError, InvalidRequest, KvquiltError, Overloaded, Unavailable
from shared.identity import ids_hash

log = logging.getLogger(__name__)

_MAX_PREFILL_JOBS = 4
_MAX_CHUNKS_IN_FLIGHT = 8
_POLL_S = 0.1


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
        self._decode = decode
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._loader = Loader(source or NoSource(), model.spec, self.config.loader_threads)
        self._scheduler = Scheduler(self.config)
        self._rotation = Rotation(model.spec.rope, model.spec.device)
        self._kernel = kernel_for(self.config.backend, model.spec.device)
        self._pool = Pool(self.config.resident_bytes)
        self._jobs: dict[str, Job] = {}
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._paused: list[GenerateJob] = []
        self._missing: list[Entry] = []
        self._closed = False

    # --- from any thread -------------------------------------------------------------------------------------------------

    def submit(self, request: GenerateRequest | PrefillRequest, sink: Sink) -> None:
        """Hands a request over; its events go to ``sink``, on the engine's thread, the last one being done or failed.

        Raises:
            InvalidRequest, ContextTooLong: the request can never be served.
            Overloaded: too many requests wait already.
            Unavailable: the engine is closed.
        """
        admission.check(request, self.model.spec, self.config, has_text=self._decode is not None)
        if self._closed:
            raise Unavailable("the engine is shutting down; retry")
        if len(self._waiting) >= self.config.max_waiting:
            raise Overloaded(f"{self.config.max_waiting} requests wait already; retry later")
        job: Job
        if isinstance(request, GenerateRequest):
            job = GenerateJob(request, sink, kv_bytes_per_token=self.model.spec.kv_bytes_per_token)
        else:
            works: dict[str, ChunkWork] = {}
            for index, chunk in enumerate(request.chunks):
                works.setdefault(chunk.chunk_id, ChunkWork(chunk, [])).indices.append(index)
            job = PrefillJob(request, sink, works, num_open=len(works))
        self._inbox.put(lambda: self._arrive(job))

    def cancel(self, request_id: str) -> None:
        """Ends a request, wherever it is; its memory returns before the next step. Unknown ids are ignored."""
        self._inbox.put(lambda: self._fail_by_id(request_id, Cancelled("the request was cancelled")))

    def stats(self) -> EngineStats:
        """As of the last step."""
        return self._stats

    def close(self) -> None:
        """Ends ``run``. Requests alive fail as unavailable; KV that is being stored is stored."""
        self._closed = True
        self._inbox.put(lambda: None)

    # --- the step loop ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Steps until ``close``, sleeping while there is nothing to do."""
        while not self._closed:
            if not self.step():
                self._wait()
        self.shut_down()

    def shut_down(self) -> None:
        """After the last step: fails what is alive and waits for the loader. Called by ``run``; by hand without it."""
        self._closed = True
        self._drain()
        for job in list(self._jobs.values()):
            self._fail(job, Unavailable("the engine shut down; retry"))
        self._loader.close()

    def generate(self, request: GenerateRequest | PrefillRequest) -> Iterator[Event]:
        """Library use, without threads of one's own: drives the steps until the request ends.

        Raises:
            KvquiltError: the request failed.
        """
        events: deque[Event] = deque()
        self.submit(request, events.append)
        try:
            while True:
                if not events and not self.step():
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
        self._pause_and_admit()
        self._start_missing()
        self._start_placed()
        passes = self._scheduler.pick(self._works())
        for slices in passes:
            self._run_pass(slices)
        self._stats = self._snapshot(len(passes))
        return bool(passes)

    def check_invariants(self) -> None:
        """Recounts references and states from the requests alive. For tests, between steps."""
        refs = Counter(entry.key for job in (*self._running, *self._paused) for entry in job.held)
        self._pool.check_invariants(refs)
        assert sorted(self._jobs) == sorted(j.request.request_id for j in (*self._waiting, *self._running, *self._paused))
        for job in self._running:
            for branch in job.branches():
                assert branch.segment.length <= branch.segment.capacity, "a branch outgrew its buffer"
        assert all(entry.state is State.LOADING for entry in self._missing), "a missing chunk is not waiting"

    # --- arrivals --------------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._inbox.get(timeout=_POLL_S if self._jobs else None)()

    def _drain(self) -> None:
        while True:
            try:
                self._inbox.get_nowait()()
            except queue.Empty:
                return

    def _arrive(self, job: Job) -> None:
        request_id = job.request.request_id
        if request_id in self._jobs:
            _emit(job, FailedEvent(InvalidRequest(f"request_id {request_id!r} is in use by another request")))
            return
        self._jobs[request_id] = job
        self._waiting.append(job)

    def _expire(self) -> None:
        now = time.monotonic()
        for job in [j for j in self._jobs.values() if j.request.deadline_s is not None and now >= j.request.deadline_s]:
            self._fail(job, DeadlineExceeded("the deadline passed before the answer was complete; set meta.deadline_ms higher"))

    def _pause_and_admit(self) -> None:
        generating = [job for job in self._running if isinstance(job, GenerateJob)]
        for job in generating[len(generating) - self._scheduler.num_to_pause([j.demand() for j in generating]) :]:
            self._running.remove(job)
            self._paused.append(job)
            _move(job, torch.device("cpu"))
        while self._paused and self._fits(self._paused[0]):
            job = self._paused.pop(0)
            _move(job, self.model.spec.device)
            self._running.append(job)
        for waiting in list(self._waiting):
            if isinstance(waiting, PrefillJob):
                fits = sum(isinstance(j, PrefillJob) for j in self._running) < _MAX_PREFILL_JOBS
            else:
                fits = not self._paused and self._fits(waiting)
            if fits:
                self._waiting.remove(waiting)
                self._admit(waiting)
            elif isinstance(waiting, GenerateJob):
                break  # first come, first served

    def _fits(self, job: GenerateJob) -> bool:
        running: list[Demand] = [j.demand() for j in self._running if isinstance(j, GenerateJob)]
        return self._scheduler.fits(job.demand(), running)

    def _admit(self, job: Job) -> None:
        job.clock.admitted = time.monotonic()
        self._running.append(job)
        prefix_ids = job.request.prefix_ids
        if prefix_ids:
            job.prefix, new = self._pool.acquire(f"prefix:{ids_hash(prefix_ids)}", prefix_ids)
            if new:
                self._pool.compute(job.prefix, Branch(self.model.spec, prefix_ids, 0))
        try:
            to_load = self._acquire_chunks(job) if isinstance(job, GenerateJob) else self._lens(job)
        except InvalidRequest as error:
            self._fail(job, error)
            return
        if to_load:
            prefill = job if isinstance(job, PrefillJob) else None
            self._loader.load(to_load, lambda loaded: self._inbox.put(lambda: self._on_loaded(loaded, prefill)))

    def _acquire_chunks(self, job: GenerateJob) -> dict[str, int]:
        """References to all chunks of the context; answers which of them must be loaded."""
        to_load = {}
        if job.request.reuse is not ReuseMode.FULL:
            for chunk in {c.chunk_id: c for c in job.request.chunks}.values():
                job.entries[chunk.chunk_id], new = self._pool.acquire(chunk.chunk_id, chunk.token_ids)
                if new:
                    to_load[chunk.chunk_id] = len(chunk.token_ids)
        return to_load

    def _lens(self, job: PrefillJob) -> dict[str, int]:
        return {key: len(work.chunk.token_ids) for key, work in job.works.items()}

    # --- stored KV -------------------------------------------------------------------------------------------------------

    def _on_loaded(self, loaded: Loaded, prefill: PrefillJob | None) -> None:
        if prefill is not None:
            self._on_checked(loaded, prefill)
            return
        entry = self._pool.get(loaded.key)
        if entry is None or entry.state is not State.LOADING:
            return
        if loaded.segment is not None:
            self._pool.fill(entry, loaded.segment)
        elif entry.refs == 0:
            self._pool.discard(entry)
        else:
            entry.broken = loaded.broken
            self._missing.append(entry)
            next(job for job in self._holders(entry)).lost.add(entry.key)

    def _on_checked(self, loaded: Loaded, job: PrefillJob) -> None:
        """A chunk of a prefill request was looked for in the store and, where found, read and verified."""
        if job.request.request_id not in self._jobs:
            return
        work = job.works[loaded.key]
        if loaded.segment is not None:
            self._stored(job, work, existed=True)
        else:
            work.broken = loaded.broken
            job.to_compute.append(work)

    def _on_saved(self, saved: Saved, job: PrefillJob) -> None:
        if job.request.request_id not in self._jobs:
            return
        work = job.in_flight.pop(saved.key)
        if saved.error is not None:
            self._fail(job, saved.error)
        else:
            self._stored(job, work, existed=False)

    def _stored(self, job: PrefillJob, work: ChunkWork, existed: bool) -> None:
        for index in work.indices:
            _emit(job, ChunkStoredEvent(index, existed))
        work.branch = None  # its KV returns now, not when the last chunk of a long request is stored
        job.num_open -= 1
        if job.num_open == 0:
            self._finish(job)

    def _holders(self, entry: Entry) -> Iterator[GenerateJob]:
        for job in (*self._running, *self._paused):
            if isinstance(job, GenerateJob) and entry.key in job.entries:
                yield job

    # --- what can run ----------------------------------------------------------------------------------------------------

    def _start_missing(self) -> None:
        """Chunks that are stored nowhere are computed, as soon as the prefix they stand behind is there."""
        waiting, self._missing = self._missing, []
        for entry in waiting:
            holder = next(self._holders(entry), None)
            if holder is None:
                self._pool.discard(entry)
            elif holder.prefix is not None and holder.prefix.state is not State.READY:
                self._missing.append(entry)
            else:
                entry.prefix_ids = holder.request.prefix_ids
                self._pool.compute(entry, self._chunk_branch(holder.prefix, entry.token_ids))
        for job in self._running:
            if not isinstance(job, PrefillJob) or (job.prefix is not None and job.prefix.state is not State.READY):
                continue
            while job.to_compute and len(job.in_flight) < _MAX_CHUNKS_IN_FLIGHT:
                work = job.to_compute.popleft()
                work.branch = self._chunk_branch(job.prefix, work.chunk.token_ids)
                job.in_flight[work.chunk.chunk_id] = work

    def _chunk_branch(self, prefix: Entry | None, token_ids: tuple[int, ...]) -> Branch:
        """A chunk is computed directly behind the prefix; its keys are kept at local positions from 0 on."""
        if prefix is None or prefix.segment is None:
            return Branch(self.model.spec, token_ids, 0)
        return Branch(self.model.spec, token_ids, prefix.segment.length, (Placement(prefix.segment, 0),))

    def _start_placed(self) -> None:
        for job in self._running:
            if isinstance(job, GenerateJob) and not job.started and job.placed:
                job.clock.placed = time.monotonic()
                job.started = True
                self._plant(job)

    def _plant(self, job: GenerateJob) -> None:
        """Makes the request's forest: a branch per question, on the placed context or, under ``full``, on a private one."""
        request, spec = job.request, self.model.spec
        placements, end = _place(job)
        job.num_open = len(request.questions) * request.sampling.n
        chunk_ids = tuple(t for chunk in request.chunks for t in chunk.token_ids)
        parent = None
        if request.reuse is ReuseMode.FULL and chunk_ids:
            if len(request.questions) == 1:  # nothing to share: one ordinary causal prefill
                job.questions.append(Question(0, Branch(spec, chunk_ids + request.questions[0], end, placements)))
                return
            parent = Branch(spec, chunk_ids, end, placements)
            job.questions.append(Question(None, parent))
            end = parent.end
        for index, question in enumerate(request.questions):
            job.questions.append(Question(index, Branch(spec, question, end, placements, parent)))

    def _works(self) -> list[BranchWork]:
        """Branches with tokens to compute whose ancestors are complete; answers and questions before chunks of prefills."""
        works = [BranchWork(entry.branch, entry) for entry in self._pool.computing() if entry.branch]
        for job in self._running:
            if isinstance(job, GenerateJob):
                owners: list[Question | Answer] = [*job.questions, *job.answers]
                works += [BranchWork(o.branch, o, job) for o in owners if _runnable(o.branch)]
        for job in self._running:
            if isinstance(job, PrefillJob):
                works += [BranchWork(w.branch, w, job) for w in job.in_flight.values() if w.branch and w.branch.pending]
        return works

    # --- a forward pass --------------------------------------------------------------------------------------------------

    def _run_pass(self, slices: list[Slice[BranchWork]]) -> None:
        try:
            hidden_RE, lanes = self._forward(slices)
        except Exception:
            log.exception("a step of %d branches failed", len(slices))
            self._fail_works([s.work for s in slices])
            return
        ended = []
        for piece, lane in zip(slices, lanes, strict=True):
            lane.branch.segment.length += lane.num_rows
            del lane.branch.pending[: lane.num_rows]
            if not lane.branch.pending:
                ended.append((piece.work, lane.start + lane.num_rows - 1))
        rows = [row for work, row in ended if _needs_logits(work)]
        logits_RV = iter(self.model.logits(hidden_RE[rows])) if rows else iter(())
        for work, _ in ended:
            self._on_computed(work, next(logits_RV) if _needs_logits(work) else None)

    def _forward(self, slices: list[Slice[BranchWork]]) -> tuple[torch.Tensor, list[Lane]]:
        lanes: list[Lane] = []
        ids: list[int] = []
        for piece in slices:
            branch = piece.work.branch
            branch.segment.reserve(piece.num_rows)
            lanes.append(Lane(branch, len(ids), piece.num_rows))
            ids += branch.pending[: piece.num_rows]
        plan = StepPlan(lanes, self._rotation, self._kernel, self.model.spec.device)
        return self.model.forward(torch.tensor(ids, device=self.model.spec.device), plan), lanes

    def _on_computed(self, work: BranchWork, logits_V: torch.Tensor | None) -> None:
        owner, job = work.owner, work.job
        if isinstance(owner, Entry):
            self._on_entry_computed(owner)
        elif isinstance(owner, ChunkWork):
            assert isinstance(job, PrefillJob)
            assert owner.branch is not None
            self._loader.save(
                owner.chunk.chunk_id,
                job.request.prefix_ids,
                owner.chunk.token_ids,
                owner.branch.segment,
                owner.broken,
                lambda saved: self._inbox.put(lambda: self._on_saved(saved, job)),
            )
        elif logits_V is not None:
            assert isinstance(job, GenerateJob)
            self._on_logits(job, owner, logits_V)

    def _on_entry_computed(self, entry: Entry) -> None:
        assert entry.branch is not None
        segment = entry.branch.segment
        self._pool.fill(entry, segment)
        if not entry.key.startswith("prefix:"):
            self._loader.save(entry.key, entry.prefix_ids, entry.token_ids, segment, entry.broken)

    def _on_logits(self, job: GenerateJob, owner: Question | Answer, logits_V: torch.Tensor) -> None:
        if job.request.request_id not in self._jobs:
            return  # failed earlier in this very pass
        answers = [owner] if isinstance(owner, Answer) else self._fork(job, owner)
        for answer in answers:
            self._next_token(job, answer, logits_V)

    def _fork(self, job: GenerateJob, question: Question) -> list[Answer]:
        """The samples of a question: branches on its last token."""
        assert question.index is not None
        job.clock.last_first_token = time.monotonic()
        job.clock.first_token = job.clock.first_token or job.clock.last_first_token
        params = job.request.sampling
        capacity = min(params.max_tokens, 64)
        answers = [
            Answer(
                question.index,
                s,
                Branch(self.model.spec, (), question.branch.end, parent=question.branch, capacity=capacity),
                TextStream(self._decode, params.stop),
            )
            for s in range(params.n)
        ]
        job.answers += answers
        return answers

    def _next_token(self, job: GenerateJob, answer: Answer, logits_V: torch.Tensor) -> None:
        params = job.request.sampling
        chosen = sample(logits_V, params, answer.sample, answer.num_generated)
        ended = chosen.token_id in self.model.spec.eos_ids and not params.ignore_eos
        text = "" if ended else answer.text.push(chosen.token_id)  # the end mark is no text, whatever the tokenizer makes of it
        answer.num_generated += 1
        job.generated += 1
        _emit(job, TokenEvent(answer.question, answer.sample, chosen.token_id, text, chosen.logprob, chosen.top_logprobs))
        if ended or answer.text.stopped:
            self._end_answer(job, answer, FinishReason.STOP)
        elif answer.num_generated >= params.max_tokens:
            self._end_answer(job, answer, FinishReason.LENGTH)
        else:
            answer.branch.pending.append(chosen.token_id)

    def _end_answer(self, job: GenerateJob, answer: Answer, reason: FinishReason) -> None:
        rest = answer.text.finish()
        if answer.text.stopped:
            reason = FinishReason.STOP
        _emit(job, BranchDoneEvent(answer.question, answer.sample, reason, rest, answer.num_generated))
        job.answers.remove(answer)
        job.num_open -= 1
        if job.num_open == 0:
            self._finish(job)

    # --- ends ------------------------------------------------------------------------------------------------------------

    def _finish(self, job: Job) -> None:
        self._forget(job)
        now = time.monotonic()
        if isinstance(job, GenerateJob):
            _emit(job, DoneEvent(job.usage(), job.clock.timings(now)))
        else:
            total = sum(len(c.token_ids) for c in job.request.chunks)
            _emit(job, DoneEvent(admission.prefill_usage(total), job.clock.timings(now)))

    def _fail_by_id(self, request_id: str, error: KvquiltError) -> None:
        job = self._jobs.get(request_id)
        if job is not None:
            self._fail(job, error)

    def _fail(self, job: Job, error: KvquiltError) -> None:
        self._forget(job)
        _emit(job, FailedEvent(error))

    def _fail_works(self, works: list[BranchWork]) -> None:
        jobs: dict[str, Job] = {}
        for work in works:
            if isinstance(work.owner, Entry):
                held = [j for j in (*self._running, *self._paused) if work.owner in j.held]
                jobs |= {j.request.request_id: j for j in held}
            elif work.job is not None:
                jobs[work.job.request.request_id] = work.job
        for job in jobs.values():
            self._fail(job, InternalError("the engine failed on this request; the generator's log has the reason"))

    def _forget(self, job: Job) -> None:
        """Takes the request out and returns what it held."""
        del self._jobs[job.request.request_id]
        for jobs in (self._running, self._paused, self._waiting):
            if job in jobs:
                jobs.remove(job)  # type: ignore[arg-type]
                if jobs is not self._waiting:
                    for entry in job.held:
                        self._pool.release(entry)

    def _snapshot(self, num_passes: int) -> EngineStats:
        branches = [b for job in (*self._running, *self._paused) for b in job.branches()]
        return EngineStats(
            resident_chunk_ids=tuple(key for key in self._pool.ready_keys() if not key.startswith("prefix:")),
            resident_bytes=self._pool.num_bytes,
            private_bytes=sum(branch.segment.num_bytes for branch in branches),
            running=len(self._running),
            paused=len(self._paused),
            waiting=len(self._waiting),
            num_steps=self._stats.num_steps + (num_passes > 0),
        )


def _place(job: GenerateJob) -> tuple[tuple[Placement, ...], int]:
    """Placements of prefix and chunks by the request's mode, and the position where the private tokens begin::

    reordered   [prefix][chunk 0][chunk 1][question      cumulative offsets
    composite   [prefix][chunk 0]        [question       every chunk right after the prefix, the question
                        [chunk 1]                        where it would stand behind all of them
    full        [prefix][chunk 0 chunk 1 question        all private
    """
    placements = []
    start = len(job.request.prefix_ids)
    if job.prefix is not None and job.prefix.segment is not None:
        placements.append(Placement(job.prefix.segment, 0))
    end = start
    if job.request.reuse is not ReuseMode.FULL:
        for chunk in job.request.chunks:
            segment = job.entries[chunk.chunk_id].segment
            assert segment is not None
            placements.append(Placement(segment, end if job.request.reuse is ReuseMode.REORDERED else start))
            end += len(chunk.token_ids)
    return tuple(placements), end


def _runnable(branch: Branch) -> bool:
    return bool(branch.pending) and (branch.parent is None or not branch.parent.pending)


def _needs_logits(work: BranchWork) -> bool:
    return isinstance(work.owner, Answer) or (isinstance(work.owner, Question) and work.owner.index is not None)


def _move(job: GenerateJob, device: torch.device) -> None:
    for branch in job.branches():
        branch.segment.move(device)


def _emit(job: Job, event: Event) -> None:
    try:
        job.sink(event)
    except Exception:
        log.exception("the receiver of request %s failed", job.request.request_id)
