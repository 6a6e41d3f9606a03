"""A request's way through the generator: pieces to ids, ids to identities, identities to the engine, its
events back. (Longer than other modules: prefilling, generating and exploring have all this in common.)"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import TypeVar

from services.generator.chunk_texts import ChunkReader, ChunkText
from services.generator.config import GeneratorConfig
from services.generator.edits import settled
from services.generator.engine_thread import EngineThread
from services.generator.events import end_of, selected_of, spelt
from services.generator.identified import Identified, Identities
from services.generator.metering import count_routed, following, readings, verdict_readings
from services.generator.planning import Plan, Planner, conditioned
from services.generator.prompts import Prompts
from services.generator.readable import ReadableParents
from services.generator.recomputing import Comparing, judged, named
from services.generator.reuse_modes import Modes
from services.generator.selection import Choosing, Decision, SelectionPort
from services.generator.telling import Notice, ResidencyTeller
from services.generator.tracing import SELECTING, traced_generation
from services.generator.warming import warm
from shared.engine import Engine
from shared.engine.kv.hot_chunks import HotChunk
from shared.errors import FailedPrecondition, InvalidRequest, KvquiltError
from shared.generation.asked import Chunk, PrefillRequest, SamplingParams
from shared.generation.described import ModelDescription, PrefilledChunk, RecomputedChunk
from shared.generation.forest import Edit, ForestRequest, Grow
from shared.generation.orders import ForestOrder, GenerationOrder
from shared.generation.pieces import Piece
from shared.generation.told import ChunkStoredEvent, DoneEvent, Event, SelectedEvent, TokenEvent
from shared.identity import adapter_identity
from shared.kv_buffers import ENCODINGS
from shared.kv_stores import ReadableChunks
from shared.metrics.recorder import MetricReading, Metrics
from shared.metrics.table import PREFILLED_CHUNKS
from shared.prompt import PromptTokenizer
from shared.request import DEFAULT_TENANT, RequestContext
from shared.scaling import ReplicaPressure
from shared.sharing import SharingScopes
from shared.streams import cancelled
from shared.threads import call_on
from shared.tracing.names import NUM_CHUNKS, NUM_TOKENS, REUSE
from shared.tracing.spans import span
from shared.verdict import Verdict

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class Generator:
    """Everything the service does, without a wire. Every method raises ``shared.errors``."""

    def __init__(
        self,
        config: GeneratorConfig,
        engine: Engine,
        tokenizer: PromptTokenizer | None,
        selector: SelectionPort | None = None,
        verdicts: Sequence[Verdict] = (),
        comparing: Comparing | None = None,
        documents: ReadableChunks | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """``comparing``: what the engine's source goes through; None: nothing is stored."""
        self.config, self._comparing = config, comparing
        self._metrics = metrics or Metrics()
        self._metrics.ask(self._readings)
        self.model = engine.model
        self.tokenizer = tokenizer
        self.prompts = Prompts(tokenizer, engine.model.spec.vocab_size, engine.model.spec.packets)
        self._modes = Modes(
            config,
            engine.model.fingerprint,
            verdicts,
            selector is not None,
            tokenizer.hash if tokenizer else "",
            {name: adapter_identity(where) for name, where in config.engine.adapters.items()},
        )
        self._scopes = SharingScopes(config.sharing_scopes)
        identities = Identities(self.prompts, engine.model.fingerprint, self._scopes)
        self._planner = Planner(config, engine.model.spec, identities, self._modes, tokenizer is not None)
        self._reader = ChunkReader(tokenizer)
        self._parents = ReadableParents(documents)
        self._choosing = Choosing(selector, config.selector, self._reader) if selector is not None else None
        self._engine = engine
        self._thread = EngineThread(engine)
        self._pressure = ReplicaPressure()
        # one: tokenizers are not for several threads, and long texts are not for the event loop
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        # not that one either: a schema may take seconds
        self._compiling = ThreadPoolExecutor(1, thread_name_prefix="compile")
        self.idle = self._thread.idle

    @property
    def alive(self) -> bool:
        return self._thread.alive

    async def prefill(
        self,
        ctx: RequestContext,
        prefix: Piece | None,
        pieces: Sequence[Piece],
        encoding: str = "",
        chained: bool = False,
    ) -> AsyncGenerator[PrefilledChunk, None]:
        """One value per piece, in order, each once its KV is durable. The same chunk twice is one piece of
        work. ``chained``: each is computed behind those before it.

        ``encoding`` empty: the configured one for new KV, what is stored stays as it is; else the one that
        all of it is stored in afterwards.
        """
        if encoding and encoding not in ENCODINGS:
            raise InvalidRequest(f"encoding: {encoding!r} is not one of {', '.join(ENCODINGS)}")
        prefix_ids, (chunks, links) = await self.tokenized(
            self._planner.context, ctx, prefix, pieces, chained
        )
        if not chunks:
            return
        await self._parents.check(ctx, Identified(chunks, links))
        told = await self._parents.told(ctx, [chunk.chunk_id for chunk in chunks])
        unique = tuple(dict.fromkeys(chunks))
        stored: dict[Chunk, bool] = {}
        next_index = 0
        request = PrefillRequest("", prefix_ids, unique, encoding=encoding, links=links, tenant=ctx.tenant)
        events = self._thread.stream(request, ctx)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, ChunkStoredEvent):
                    stored[unique[event.index]] = event.existed
                    outcome = "existed" if event.existed else "computed"
                    self._metrics.add(PREFILLED_CHUNKS, outcome=outcome)
                while next_index < len(chunks) and chunks[next_index] in stored:
                    chunk = chunks[next_index]
                    existed = stored[chunk] and chunk.chunk_id in told
                    yield PrefilledChunk(next_index, chunk.chunk_id, chunk.token_ids, existed)
                    next_index += 1

    async def recompute(
        self, ctx: RequestContext, prefix: Piece | None, pieces: Sequence[Piece]
    ) -> AsyncGenerator[RecomputedChunk, None]:
        """Computes the chunks' KV once more and compares: one value per chunk, in order.

        Raises:
            NotFound: a chunk is not stored.
        """
        if self._comparing is None:
            raise FailedPrecondition("kv_store: this generator stores no KV, so there is nothing to compare")
        prefix_ids, (chunks, links) = await self.tokenized(self._planner.context, ctx, prefix, pieces)
        for index, chunk in enumerate(chunks):
            anew = named([chunk], (*links, *chunks))
            request = PrefillRequest("", prefix_ids, anew.chunks, links=anew.links, tenant=ctx.tenant)
            async with aclosing(self._thread.stream(request, ctx)) as events:
                async for _ in events:
                    pass
            found = self._comparing.take(anew.chunks[0].chunk_id)
            yield judged(index, chunk, found, self.model.spec.dtype_name)

    async def plan(self, ctx: RequestContext, order: GenerationOrder) -> Plan:
        """The engine's request for ``order``: everything is ids, every chunk has its identity, every default
        its value.

        Raises:
            NotFound: a chunk stands behind one that the caller may not read, or that is not there.
            InvalidRequest: the form that answers are to have is none.
        """
        await self._compile(ctx, order.sampling)
        plan = await self.tokenized(self._planner.plan, ctx, order)
        await self._parents.check(ctx, Identified(plan.request.chunks, plan.request.links))
        return plan

    async def tokenized(self, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Returns what ``work`` makes of texts, in the thread that is for it."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, work, *arguments)

    def generate(self, ctx: RequestContext, plan: Plan) -> AsyncGenerator[Event, None]:
        """Tells what happens to a planned request; the last event is ``DoneEvent``. Closing it early cancels
        the work."""
        return traced_generation(ctx, plan, self.config.model, lambda traced: self._generate(traced, plan))

    async def _generate(self, ctx: RequestContext, plan: Plan) -> AsyncGenerator[Event, None]:
        choosing = asyncio.create_task(self._choose(ctx, plan)) if plan.request.reuse.deferred else None
        reading = (
            asyncio.create_task(self._read(plan))
            if plan.order.explain and plan.request.reuse.recomputes
            else None
        )
        if self.config.routing != "queue":
            resident = self._engine.stats().resident_chunk_ids
            count_routed(self._metrics, plan.request.chunks, resident, plan.order.route_held)
        try:
            with following(self._metrics, plan.request.chunks) as followed:
                async with aclosing(self._thread.stream(plan.request, ctx, decision=choosing)) as events:
                    async for event in events:
                        decision = choosing.result() if choosing is not None else None
                        if isinstance(event, SelectedEvent):
                            texts = await reading if reading is not None else None
                            event = selected_of(event, plan.request.chunks, decision, texts)
                        elif isinstance(event, TokenEvent):
                            event = spelt(event, self.tokenizer)
                        elif isinstance(event, DoneEvent):
                            event = end_of(
                                event, plan.request.chunks, plan.reusing, decision, plan.order.route
                            )
                            self._pressure.worked(event.timings.prefill_s)
                            self._pressure.answered(event.timings.first_token_s)
                        followed.on(event)
                        if isinstance(event, DoneEvent):
                            event = await self._parents.counted(ctx, event)
                        yield event
        finally:
            await cancelled([task for task in (choosing, reading) if task is not None])

    async def explore(
        self, ctx: RequestContext, order: ForestOrder, commands: AsyncIterator[Edit]
    ) -> AsyncGenerator[Event, None]:
        """Tells what happens in a live forest. It is closed when ``commands`` end."""
        prefix_ids, (chunks, links) = await self.tokenized(
            self._planner.context, ctx, order.prefix, order.chunks
        )
        await self._parents.check(ctx, Identified(chunks, links))
        reusing = self._modes.settle(
            order.reuse,
            prefix_ids,
            has_question=False,
            conditioned=conditioned(chunks),
            kv_context=order.kv_context,
        )
        request = ForestRequest(
            ctx.request_id,
            prefix_ids,
            chunks,
            reusing.mode,
            recompute=reusing.recompute,
            ape=reusing.ape,
            links=links,
            adapter=reusing.adapter,
            tenant=ctx.tenant,
            asked_by=ctx.principal.name,
        )
        edits = (await self._settled(ctx, command) async for command in commands)
        with following(self._metrics, chunks, grows=True) as followed:
            async with aclosing(self._thread.stream(request, ctx, edits)) as events:
                async for event in events:
                    if isinstance(event, SelectedEvent):
                        event = selected_of(event, chunks, None, None)
                    elif isinstance(event, DoneEvent):
                        event = end_of(event, chunks, reusing)
                    followed.on(event)
                    if isinstance(event, DoneEvent):
                        event = await self._parents.counted(ctx, event)
                    yield event

    def teller(self, replica_id: str, send: Callable[[Notice], Awaitable[bool]]) -> ResidencyTeller:
        """Makes what tells routers of this replica; see there."""
        epoch, bytes_per_token = time.time_ns() // 10**6, self.model.spec.kv_bytes_per_token
        return ResidencyTeller(
            replica_id, epoch, self._engine.stats, bytes_per_token, lambda: self._pressure.work_ms, send
        )

    def signals(self) -> dict[str, float]:
        """For autoscaling (``shared.scaling``), since they were asked for last."""
        stats = self._engine.stats()
        share = stats.running / self.config.engine.max_running_branches
        return self._pressure.signals(stats.waiting, share, stats.ahead_ms or 0.0)

    async def hottest(self) -> tuple[HotChunk, ...]:
        """Those of the resident chunks that most requests used, as many as another replica is warmed with."""
        loop = asyncio.get_running_loop()
        told: asyncio.Future[list[HotChunk]] = loop.create_future()
        most_bytes = int(self._engine.stats().capacity_bytes * self.config.warm_share)
        self._engine.hottest(most_bytes, lambda chunks: call_on(loop, told.set_result, chunks))
        return tuple(await told)

    async def warm(self, chunks: Sequence[HotChunk]) -> None:
        """Loads them in advance, as far as there is free room; see ``warming``."""
        if chunks:
            num_resident = await warm(self._engine, chunks)
            log.info("%d of another replica's %d hottest chunks are resident", num_resident, len(chunks))

    def resident_chunk_ids(self) -> Sequence[str]:
        """Chunks of which memory holds anything: their KV, or that of conversations over them."""
        stats = self._engine.stats()
        return tuple(dict.fromkeys((*stats.resident_chunk_ids, *stats.conversation_chunk_ids)))

    def forget(self, chunk_ids: Sequence[str]) -> None:
        """Lets go of what memory holds of these chunks, unless a request uses it now."""
        self._engine.forget(chunk_ids)

    def describe(self, tenant: str = DEFAULT_TENANT) -> ModelDescription:
        """As it is served to a tenant."""
        spec, tokenizer = self.model.spec, self.tokenizer
        return ModelDescription(
            model=self.config.model,
            fingerprint=self.model.fingerprint,
            tokenizer_hash=tokenizer.hash if tokenizer else "",
            prefix_ids=self.prompts.default_prefix_ids,
            chunk_template=tokenizer.template.chunk if tokenizer else "",
            question_template=tokenizer.template.question if tokenizer else "",
            max_positions=spec.max_positions,
            dtype=spec.dtype_name,
            kv_bytes_per_token=spec.kv_bytes_per_token,
            device=str(spec.device),
            eos_ids=tuple(sorted(spec.eos_ids)),
            kv_encoding=self.config.kv_encoding,
            prompt=tokenizer.template.origin if tokenizer else "",
            kv_scope=self._scopes.of(tenant),
        )

    async def suspend(self, verdict: str, reason: str) -> bool:
        """See ``Modes.suspend``."""
        return await asyncio.to_thread(self._modes.suspend, verdict, reason)

    async def refresh(self, ctx: RequestContext) -> None:
        """Learns whose the selector is now, where that matters to a verdict; whoever does not answer stays
        as known."""
        if self._choosing is not None and self._modes.asks_for_auxiliary:
            await self._choosing.identify(ctx)

    def facts(self) -> dict[str, str]:
        """For an operator."""
        spec, stats = self.model.spec, self._engine.stats()
        return {
            "model": self.config.model,
            "fingerprint": self.model.fingerprint,
            "device": str(spec.device),
            "dtype": spec.dtype_name,
            "kv_encoding": self.config.kv_encoding,
            "prompt": self.tokenizer.template.origin if self.tokenizer else "token ids only",
            "verdict": self._modes.status(
                self.prompts.default_prefix_ids, self._choosing.auxiliary if self._choosing else ""
            ),
            "adapters": self._modes.adapters,
            "packets": "none" if spec.packets is None else f"{spec.packets}",
            "resident_chunks": str(len(stats.resident_chunk_ids)),
            "resident_bytes": str(stats.resident_bytes),
            "private_bytes": str(stats.private_bytes),
            "conversation_bytes": str(stats.conversation_bytes),
            "running_requests": str(stats.running),
            "waiting_requests": str(stats.waiting),
        }

    def _readings(self) -> Iterator[MetricReading]:
        """For whoever looks at the metrics, in his thread."""
        spec = self.model.spec
        private_bytes = self.config.engine.private_bytes
        yield from readings(self._engine.stats(), private_bytes, spec.kv_bytes_per_token)
        auxiliary = self._choosing.auxiliary if self._choosing else ""
        yield from verdict_readings(self._modes.state(self.prompts.default_prefix_ids, auxiliary))

    def close(self) -> None:
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
        self._compiling.shutdown(wait=False, cancel_futures=True)
        self._thread.close()

    async def _settled(self, ctx: RequestContext, command: Edit) -> Edit:
        """A form that is none is refused by the engine, which knows the branch, and by then why."""
        if isinstance(command, Grow):
            with contextlib.suppress(KvquiltError):
                await self._compile(ctx, command.sampling)
        return await self.tokenized(settled, command, self.prompts, self.config)

    async def _compile(self, ctx: RequestContext, sampling: SamplingParams) -> None:
        """So that the engine has it at once."""
        if (form := sampling.response_format) is not None:
            async with ctx.until_deadline("compiling the response_format"):
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._compiling, self._engine.compile, form)

    async def _choose(self, ctx: RequestContext, plan: Plan) -> Decision:
        assert self._choosing is not None, "planned without a selector"
        identified = Identified(plan.request.chunks, plan.request.links)
        with span(ctx, SELECTING, {NUM_CHUNKS: len(plan.request.chunks)}) as stage:
            decision = await self._choosing.choose(stage.ctx, identified, plan.order, plan.reusing)
            chosen = sum(map(len, decision.recompute.by_question or ()))
            stage.set({REUSE: decision.mode.value, NUM_TOKENS: chosen})
        return decision

    async def _read(self, plan: Plan) -> list[ChunkText | None]:
        ids = [chunk.token_ids for chunk in plan.request.chunks]
        return await asyncio.to_thread(self._reader.chunks, plan.order.chunks, ids)
