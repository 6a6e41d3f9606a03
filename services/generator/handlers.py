"""``kvquilt.v1.Generation``: protos to domain values, the call, and back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from protos.kvquilt.v1 import common_pb2, generation_pb2
from services.generator.margins import MarginEvent, MarginTokenEvent, MarginWriter
from services.generator.messages import (
    chunks_of,
    command_of,
    explored_to_pb,
    margins_of,
    order_of,
    piece_of,
    response_of,
    reuse_order_of,
)
from services.generator.serving import Generator
from services.generator.telling import Told
from shared.clients.health import ServiceHealth, health_to_pb
from shared.errors import InvalidRequest, KvquiltError, Unavailable
from shared.generation.forest import Command
from shared.request import RequestContext
from shared.rpc import both_streams, context_of, server_stream, unary


class GenerationServicer:
    """``generator`` is an error when the model could not be loaded: every call then answers with it, and
    Health says it."""

    def __init__(self, generator: Generator | KvquiltError) -> None:
        self._loaded = generator

    @server_stream
    async def Prefill(
        self, request: generation_pb2.PrefillRequest, ctx: RequestContext
    ) -> AsyncIterator[generation_pb2.PrefillResponse]:
        prefix = piece_of(request.prefix, "prefix") if request.HasField("prefix") else None
        prefilled = self._generator.prefill(ctx, prefix, chunks_of(request.chunks), request.encoding)
        async with aclosing(prefilled):
            async for done in prefilled:
                yield generation_pb2.PrefillResponse(
                    index=done.index,
                    chunk_id=done.chunk.chunk_id,
                    num_tokens=len(done.chunk.token_ids),
                    existed=done.existed,
                    token_ids=done.chunk.token_ids,
                )

    @server_stream
    async def Generate(
        self, request: generation_pb2.GenerateRequest, ctx: RequestContext
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        generator, order, margins = self._generator, order_of(request), margins_of(request.decoding)
        planned = generator.plan(ctx, order)
        events: AsyncGenerator[Told | MarginTokenEvent | MarginEvent, None]
        if margins is None:
            events = generator.generate(ctx, planned)
        else:
            events = MarginWriter(generator, ctx, planned, margins).answer()
        async with aclosing(events):
            async for event in events:
                yield response_of(event)

    @both_streams
    async def Explore(
        self, requests: AsyncIterator[generation_pb2.ExploreRequest]
    ) -> AsyncIterator[generation_pb2.ExploreResponse]:
        first = await anext(aiter(requests), None)
        if first is None or first.WhichOneof("command") != "open":
            raise InvalidRequest("open: must be the first message")
        generator, opened = self._generator, first.open

        async def commands() -> AsyncIterator[Command]:
            async for request in requests:
                yield command_of(request, generator.prompts, generator.config)

        prefix = piece_of(opened.prefix, "prefix") if opened.HasField("prefix") else None
        chunks, reuse = chunks_of(opened.chunks), reuse_order_of(opened)
        async with aclosing(
            generator.explore(context_of(opened.meta), prefix, chunks, reuse, commands())
        ) as events:
            async for event in events:
                yield explored_to_pb(event)

    @unary(generation_pb2.DescribeModelResponse)
    async def DescribeModel(
        self, request: generation_pb2.DescribeModelRequest, ctx: RequestContext
    ) -> generation_pb2.DescribeModelResponse:
        generator = self._generator
        spec, tokenizer = generator.model.spec, generator.tokenizer
        return generation_pb2.DescribeModelResponse(
            model=generator.config.model,
            fingerprint=generator.model.fingerprint,
            tokenizer_hash=tokenizer.hash if tokenizer else "",
            prefix_ids=generator.prompts.default_prefix_ids,
            chunk_template=tokenizer.template.chunk if tokenizer else "",
            question_template=tokenizer.template.question if tokenizer else "",
            max_positions=spec.max_positions,
            dtype=spec.dtype_name,
            kv_bytes_per_token=spec.kv_bytes_per_token,
            device=str(spec.device),
            eos_ids=sorted(spec.eos_ids),
            kv_encoding=generator.config.kv_encoding,
        )

    @unary(common_pb2.HealthResponse)
    async def Health(
        self, request: common_pb2.HealthRequest, ctx: RequestContext
    ) -> common_pb2.HealthResponse:
        return health_to_pb(self.health())

    def health(self) -> ServiceHealth:
        if isinstance(self._loaded, KvquiltError):
            return ServiceHealth("generator", ready=False, detail=self._loaded.detail)
        if not self._loaded.alive:
            return ServiceHealth(
                "generator", ready=False, detail="the engine has stopped and is being replaced"
            )
        return ServiceHealth("generator", ready=True, facts=self._loaded.facts())

    def raise_if_dead(self) -> None:
        """
        Raises:
            Unavailable: the engine has stopped. A model that could not be loaded is not dead: a new replica
            would not help.
        """
        if isinstance(self._loaded, Generator) and not self._loaded.alive:
            raise Unavailable("the engine has stopped")

    @property
    def _generator(self) -> Generator:
        if isinstance(self._loaded, KvquiltError):
            raise self._loaded
        return self._loaded
