"""A request's way through the generator: pieces to ids, ids to identities, identities to the engine, its
events back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import TypeVar

from services.generator.chunk_texts import ChunkReader, ChunkText
from services.generator.config import GeneratorConfig
from services.generator.edits import settled
from services.generator.engine_thread import EngineThread
from services.generator.events import end_of, selected_of
from services.generator.identified import Identified, Identities
from services.generator.planning import Plan, Planner, conditioned
from services.generator.prompts import Prompts
from services.generator.reuse_modes import Modes
from services.generator.selection import Choosing, Decision, SelectionPort
from shared.engine import Engine
from shared.errors import InvalidRequest
from shared.generation.asked import Chunk, PrefillRequest
from shared.generation.described import ModelDescription, PrefilledChunk
from shared.generation.forest import Edit, ForestRequest
from shared.generation.orders import ForestOrder, GenerationOrder
from shared.generation.pieces import Piece
from shared.generation.told import ChunkStoredEvent, DoneEvent, Event, SelectedEvent
from shared.identity import adapter_identity
from shared.kv_buffers import ENCODINGS
from shared.prompt import PromptTokenizer
from shared.request import RequestContext
from shared.streams import cancelled
from shared.verdict import Verdict

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
    ) -> None:
        self.config = config
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
        identities = Identities(self.prompts, engine.model.fingerprint)
        self._planner = Planner(config, engine.model.spec, identities, self._modes, tokenizer is not None)
        self._reader = ChunkReader(tokenizer)
        self._choosing = Choosing(selector, config.selector, self._reader) if selector is not None else None
        self._engine = engine
        self._thread = EngineThread(engine)
        # one: tokenizers are not for several threads, and long texts are not for the event loop
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
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
        unique = tuple(dict.fromkeys(chunks))
        stored: dict[Chunk, bool] = {}
        next_index = 0
        request = PrefillRequest("", prefix_ids, unique, encoding=encoding, links=links)
        events = self._thread.stream(request, ctx)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, ChunkStoredEvent):
                    stored[unique[event.index]] = event.existed
                while next_index < len(chunks) and chunks[next_index] in stored:
                    chunk = chunks[next_index]
                    yield PrefilledChunk(next_index, chunk.chunk_id, chunk.token_ids, stored[chunk])
                    next_index += 1

    async def plan(self, ctx: RequestContext, order: GenerationOrder) -> Plan:
        """The engine's request for ``order``: everything is ids, every chunk has its identity, every default
        its value."""
        return await self.tokenized(self._planner.plan, ctx, order)

    async def tokenized(self, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        """What ``work`` makes of texts, in the thread that is for it."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, work, *arguments)

    async def generate(self, ctx: RequestContext, plan: Plan) -> AsyncGenerator[Event, None]:
        """Tells what happens to a planned request; the last event is ``DoneEvent``. Closing it early cancels
        the work."""
        choosing = asyncio.create_task(self._choose(ctx, plan)) if plan.request.reuse.deferred else None
        reading = (
            asyncio.create_task(self._read(plan))
            if plan.order.explain and plan.request.reuse.recomputes
            else None
        )
        try:
            async with aclosing(self._thread.stream(plan.request, ctx, decision=choosing)) as events:
                async for event in events:
                    decision = choosing.result() if choosing is not None else None
                    if isinstance(event, SelectedEvent):
                        texts = await reading if reading is not None else None
                        yield selected_of(event, plan.request.chunks, decision, texts)
                    elif isinstance(event, DoneEvent):
                        yield end_of(event, plan.request.chunks, plan.reusing, decision)
                    else:
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
        )
        edits = (
            await self.tokenized(settled, command, self.prompts, self.config) async for command in commands
        )
        async with aclosing(self._thread.stream(request, ctx, edits)) as events:
            async for event in events:
                if isinstance(event, SelectedEvent):
                    yield selected_of(event, chunks, None, None)
                elif isinstance(event, DoneEvent):
                    yield end_of(event, chunks, reusing)
                else:
                    yield event

    def describe(self) -> ModelDescription:
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
            "running_requests": str(stats.running),
            "waiting_requests": str(stats.waiting),
        }

    def close(self) -> None:
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
        self._thread.close()

    async def _choose(self, ctx: RequestContext, plan: Plan) -> Decision:
        assert self._choosing is not None, "planned without a selector"
        identified = Identified(plan.request.chunks, plan.request.links)
        return await self._choosing.choose(ctx, identified, plan.order, plan.reusing)

    async def _read(self, plan: Plan) -> list[ChunkText | None]:
        ids = [chunk.token_ids for chunk in plan.request.chunks]
        return await asyncio.to_thread(self._reader.chunks, plan.order.chunks, ids)
