"""The engine: requests in, events out, one step at a time.

A step takes what arrived (requests, loaded segments, cancellations), lets the scheduler choose rows from all
branches of all requests, runs them through the model together, and samples. Decoding several branches per
step is not a mode: a step always decodes whatever branches there are (MultiDecode). ``submit`` and ``cancel``
may be called from any thread; everything else runs in the one thread that calls ``run``, ``step`` or
``generate``. Longer than other modules: the order of a step is read in one place.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from shared.engine import admission
from shared.engine.adapters import served_adapters
from shared.engine.admission_control import AdmissionControl
from shared.engine.decoding.grammars import Grammars
from shared.engine.decoding.text import Decode
from shared.engine.endings import Endings
from shared.engine.inbox import Inbox
from shared.engine.jobs.answers import GenerateJob
from shared.engine.jobs.context import ContextJob
from shared.engine.jobs.forest import ForestJob
from shared.engine.jobs.host import Host
from shared.engine.jobs.job import Sink
from shared.engine.jobs.prefill import PrefillJob
from shared.engine.kv.chunk_reads import FirstLayer, Loaded
from shared.engine.kv.conversations import Conversations
from shared.engine.kv.hot_chunks import HotChunk
from shared.engine.kv.late_chunks import LateChunks
from shared.engine.kv.loader import ChunkLoad, Loader
from shared.engine.kv.memory import DeviceMemory, Memory, pool_bytes
from shared.engine.kv.residency import Pool
from shared.engine.kv.segment_cache import SegmentCache
from shared.engine.kv.source import NoSource, SegmentSource
from shared.engine.model.lora import LoraAdapter
from shared.engine.model.model import LoadedModel
from shared.engine.model.pass_times import PassTimes, device_event
from shared.engine.model.passes import PassRunner
from shared.engine.prefills import Prefills
from shared.engine.request_queue import RequestQueue
from shared.engine.scheduler import Scheduler
from shared.engine.speculation import Speculation
from shared.engine.stats import EngineStats, snapshot
from shared.engine.steps import Steps
from shared.engine_config import EngineConfig
from shared.errors import Cancelled, InvalidRequest, Overloaded, Unavailable
from shared.generation.asked import GenerateRequest, PrefillRequest
from shared.generation.forest import Command, ForestRequest
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.response_format import ResponseFormat
from shared.generation.told import DoneEvent, Event, FailedEvent

_POLL_S = 0.1
_SOON_S = 0.005
_LOOK_S = 0.02  # how often is looked whether KV comes late


class Engine:
    """
    decode: token ids to text (special tokens skipped); None serves ids only, without text and stop strings.
    memory: of the model's device; None asks torch.
    adapters: that requests may name, beside those of ``config``; what is refused: see ``served_adapters``.
    tokenizer: the model's, as the JSON of ``tokenizers``, for answers that keep to a format; None: there are
    none.
    clock: by which kept conversations are over.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig | None = None,
        source: SegmentSource | None = None,
        decode: Decode | None = None,
        memory: Memory | None = None,
        adapters: Iterable[LoraAdapter] = (),
        tokenizer: Callable[[], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.config = config or EngineConfig()
        served = served_adapters(model, self.config, adapters)
        memory = memory or DeviceMemory(model.spec.device)
        pool = Pool(pool_bytes(self.config, model.spec.device, memory), self.config.resident_floor)
        self._stats = EngineStats(capacity_bytes=pool.capacity_bytes)
        if self.config.num_threads:
            torch.set_num_threads(self.config.num_threads)
        self._grammars = Grammars(tokenizer, model.spec.vocab_size, model.spec.eos_ids)
        self._closed = False
        self._inbox = Inbox()
        self._loader = Loader(source or NoSource(), model.spec, self.config.loader_threads)
        scheduler = Scheduler(self.config, together=model.rows_independent)
        self._speculation = Speculation(min(self.config.draft_rows, self.config.max_step_tokens))
        self._requests = RequestQueue(scheduler)
        self._conversations = Conversations(model.spec, self.config, self._requests.private_bytes, clock)
        self._host = Host(
            model.spec,
            self.config,
            decode,
            model.spec.rotation(),
            self._grammars,
            self._conversations,
            served,
        )
        self._late = LateChunks(model.spec, self.config.late_from_s)
        self._cache = SegmentCache(
            model.spec, pool, self._loader, self._requests.holders, self._inbox, self._late
        )
        self._endings = Endings(self._requests, self._cache, self._conversations, memory)
        self._steps = Steps(
            PassRunner(model, self.config),
            self.config.overlap_from_s if model.spec.device.type == "cpu" else 0.0,
            scheduler,
            self._speculation,
            self._requests,
            self._cache,
            self._endings,
            self._inbox,
            PassTimes(self._late.estimates.computed, device_event(model.spec.device)),
        )
        self._prefills = Prefills(
            model.spec, self._loader, self._requests, self._inbox, self._endings, self._cache
        )
        self._admission = AdmissionControl(
            model.spec.device,
            self._requests,
            self._cache,
            self._conversations,
            self._prefills,
            self._endings,
            self._on_loader,
        )

    # --- from any thread -----------------------------------------------------------------------------------

    def submit(self, request: GenerateRequest | PrefillRequest | ForestRequest, sink: Sink) -> None:
        """Hands a request over; its events go to ``sink``, on the engine's thread, the last one being done or
        failed.

        Raises:
            InvalidRequest, ContextTooLong: the request can never be served. FailedPrecondition: nor any with
            such a ``response_format``, which is compiled now if it is a new one (``compile`` did it before).
            Overloaded: too many requests wait already.
            Unavailable: the engine is closed.
        """
        has_text = self._host.decode is not None
        request = admission.without_packets(request, self.model.spec)
        admission.check(request, self.model.spec, self.config, has_text, self._host.adapters)
        if self._closed:
            raise Unavailable("the engine is shutting down; retry")
        if self._requests.num_waiting + len(self._inbox) >= self.config.max_waiting:
            raise Overloaded(f"{self.config.max_waiting} requests wait already; retry later")
        job = self._job_of(request, sink)
        if isinstance(job, ContextJob):
            self._prefetch(job.request)
        self._inbox.post(lambda: self._arrive(job))

    def compile(self, form: ResponseFormat) -> None:
        """Has texts of this format begin at once from here on, for a while. May take seconds, so it is for a
        thread that may wait.

        Raises:
            InvalidRequest, FailedPrecondition, Unavailable: see ``Grammars.of``.
        """
        self._grammars.of(form)

    def command(self, request_id: str, command: Command) -> None:
        """To a live forest; what became of it is told to the sink. A forest that has ended takes no
        notice."""
        self._inbox.post(lambda: self._command(request_id, command))

    def decide(self, request_id: str, reuse: ReuseMode, recompute: Recompute) -> None:
        """Of a request whose mode is deferred: from here on it is one of this mode, whether its KV is there
        already or not. A decision that does not fit it fails it; a request that is decided, or has ended,
        takes no notice."""
        self._inbox.post(lambda: self._decide(request_id, reuse, recompute))

    def cancel(self, request_id: str) -> None:
        """Ends a request, wherever it is; its memory returns before the next step. Unknown ids are
        ignored."""
        self._inbox.post(lambda: self._cancel(request_id))

    def forget(self, chunk_ids: Sequence[str]) -> None:
        """Lets go of these chunks' KV, unless a request uses it now, and of what is kept of conversations
        over them."""
        self._inbox.post(lambda: self._forget(chunk_ids))

    def hottest(self, most_bytes: int, told: Callable[[list[HotChunk]], None]) -> None:
        """Calls ``told``, on the engine's thread, with the resident chunks that most requests have referred
        to, as far as they take at most so many bytes."""
        self._inbox.post(lambda: told(self._cache.hottest(most_bytes)))

    def warm(self, chunks: Sequence[HotChunk], told: Callable[[bool], None]) -> None:
        """Loads chunks that no request has asked for, as far as there is free room. Calls ``told`` once for
        each, on the engine's thread, when it is known whether it is resident."""
        self._inbox.post(lambda: self._cache.warm(chunks, told))

    def stats(self) -> EngineStats:
        """As of the last step."""
        return self._stats

    def close(self) -> None:
        """Ends ``run``. Requests alive fail as unavailable; KV that is being stored is stored."""
        self._closed = True
        self._inbox.post(lambda: None)

    # --- the step loop -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Steps until ``close``, sleeping while there is nothing to do."""
        while not self._closed:
            if not self.step() and not self._closed:  # whose news the step itself may have taken
                self.wait()
        self.shut_down()

    def shut_down(self) -> None:
        """After the last step: fails what is alive and waits for the loader. Called by ``run``; by hand
        without it."""
        self._closed = True
        self._inbox.drain()
        for job in self._requests:
            self._endings.fail(job, Unavailable("the engine shut down; retry"))
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
                    self.wait()
                while events:
                    event = events.popleft()
                    if isinstance(event, FailedEvent):
                        raise event.error
                    yield event
                    if isinstance(event, DoneEvent):
                        return
        finally:
            self.cancel(request.request_id)
            self._inbox.drain()

    @torch.inference_mode()
    def step(self) -> bool:
        """One scheduling step. False: nothing could run (requests may still wait for their KV)."""
        self._inbox.drain()
        self._admission.expire()
        self._conversations.expire()
        self._admission.balance()
        self._steps.choose_late()
        self._cache.missing.start(self._endings.with_room)
        self._prefills.start_chunks()
        self._steps.start_placed()
        self._steps.obey()
        self._tell_ahead()
        ran = self._steps.run()
        self._stats = snapshot(
            self._requests,
            self._cache,
            self._conversations,
            self._speculation.counts,
            self._late,
            self._stats.num_steps + ran,
        )
        return ran

    def check_invariants(self) -> None:
        """Recounts references and states from the requests alive. For tests, between steps."""
        self._requests.check_invariants()
        self._cache.check_invariants(self._requests.admitted())
        self._conversations.check_invariants()
        for job in self._requests.running:
            assert not (job.started and job.undecided), "runs before it is decided what to compute anew"
            assert (
                not job.started
                or job.placed
                or all(p.segment.whole for b in job.branches() for p in b.seen())
            ), "runs on holes"

    # --- arrivals ------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """After a step that ran nothing: returns when something has happened, or a little later."""
        waiting = [job for job in self._requests.running if not job.started]
        soon = any(job.arriving for job in waiting)
        look = self.config.rows_of_late_chunks > 0 and any(e.awaited for job in waiting for e in job.held)
        idle_s = _POLL_S if self._requests else self._conversations.remaining_s
        self._inbox.wait(_SOON_S if soon else _LOOK_S if look else idle_s)

    def _job_of(
        self, request: GenerateRequest | PrefillRequest | ForestRequest, sink: Sink
    ) -> ContextJob | PrefillJob:
        if isinstance(request, PrefillRequest):
            return PrefillJob(request, sink, on_computed=self._prefills.on_computed)
        if isinstance(request, GenerateRequest):
            return GenerateJob(request, sink, host=self._host)
        return ForestJob(request.without_questions, sink, host=self._host)

    def _prefetch(self, request: GenerateRequest) -> None:
        """With others in front of it, it may be a while until its chunks are loaded."""
        if request.reuse.row.stored and (self._requests or len(self._inbox)):
            resident = set(self._stats.resident_chunk_ids)
            chunk_ids = {c.chunk_id: None for c in request.chunks if c.chunk_id not in resident}
            if chunk_ids:
                self._loader.prefetch(tuple(chunk_ids), request.tenant)

    def _forget(self, chunk_ids: Sequence[str]) -> None:
        self._cache.forget(chunk_ids)
        self._conversations.forget(chunk_ids)

    def _arrive(self, job: ContextJob | PrefillJob) -> None:
        request_id = job.request.request_id
        if self._requests.get(request_id) is not None:
            job.emit(FailedEvent(InvalidRequest(f"request_id {request_id!r} is in use by another request")))
        else:
            self._requests.add(job)

    def _decide(self, request_id: str, reuse: ReuseMode, recompute: Recompute) -> None:
        job = self._requests.get(request_id)
        if isinstance(job, ContextJob) and job.undecided:
            try:
                job.decide(reuse, recompute)
            except InvalidRequest as error:
                self._endings.fail(job, error)

    def _command(self, request_id: str, command: Command) -> None:
        job = self._requests.get(request_id)
        if isinstance(job, ContextJob):
            job.command(command)

    def _cancel(self, request_id: str) -> None:
        if job := self._requests.get(request_id):
            self._endings.fail(job, Cancelled("the request was cancelled"))

    def _tell_ahead(self) -> None:
        """A pass that prefills may take long."""
        if tokens_ahead := self._requests.num_to_prefill:
            self._stats = replace(self._stats, at_s=time.monotonic(), tokens_ahead=tokens_ahead)

    def _on_loader(self, event: FirstLayer | Loaded, load: ChunkLoad, job: ContextJob) -> None:
        """On a loader's thread. The pass that waits for these very chunks is not disturbed by them."""
        if isinstance(event, Loaded):
            ahead = self._steps.runs_ahead(job)
            self._inbox.post(lambda: self._cache.on_loaded(event, load, job), news=not ahead)
        elif self.config.pipelined:
            # a pass begins when all have their first layers; until then there is nothing to wake for
            post = partial(self._inbox.post, news=False) if load.begun() else self._inbox.post_quietly
            post(lambda: self._cache.on_arriving(event, load))
