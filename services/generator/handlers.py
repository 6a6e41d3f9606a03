"""``kvquilt.v1.Generation``: protos to domain values, the call, and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from protos.kvquilt.v1 import generation_pb2
from services.generator.margins import MarginWriter
from services.generator.service import Generator
from services.generator.tracing import EXPLORING
from shared.admission.charging import charged
from shared.clients.health import ServiceHealth
from shared.errors import InvalidRequest, Unavailable
from shared.generation.described import PrefilledChunk
from shared.generation.told import DoneEvent
from shared.request import RequestContext
from shared.rpc import LoadedServicer, both_streams, context_of, server_stream, unary
from shared.streams import mapped
from shared.tracing.spans import traced_stream
from shared.wire.asked import chunks_of, forest_of, order_of, prefix_of
from shared.wire.forest import EXPLORED, command_of
from shared.wire.gathering import in_messages
from shared.wire.told import GENERATED, MODEL, PREFILLED, RECOMPUTED


class GenerationServicer(LoadedServicer[Generator]):
    application = "generator"

    @server_stream
    def Prefill(
        self, request: generation_pb2.PrefillRequest, ctx: RequestContext
    ) -> AsyncIterator[generation_pb2.PrefillResponse]:
        chunks = chunks_of(request.chunks)
        prefilled = self._service.prefill(ctx, prefix_of(request), chunks, request.encoding, request.chained)
        return mapped(charged(self.door, ctx, prefilled, _tokens_of), PREFILLED.to_pb)

    @server_stream
    def Recompute(
        self, request: generation_pb2.RecomputeRequest, ctx: RequestContext
    ) -> AsyncIterator[generation_pb2.RecomputeResponse]:
        compared = self._service.recompute(ctx, prefix_of(request), chunks_of(request.chunks))
        return mapped(compared, RECOMPUTED.to_pb)

    @server_stream
    async def Generate(
        self, request: generation_pb2.GenerateRequest, ctx: RequestContext
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        generator, order = self._service, order_of(request)
        planned, margins = await generator.plan(ctx, order), order.decoding.margins
        if margins is None:
            generated = generator.generate(ctx, planned)
            generated = generator.idle.spend(ctx, generated) if order.idle else generated
            events = mapped(charged(self.door, ctx, generated, _tokens_of), GENERATED.to_pb)
        else:
            written = MarginWriter(generator, ctx, planned, margins).answer()
            events = mapped(charged(self.door, ctx, written, _tokens_of), GENERATED.to_pb)
        async with aclosing(in_messages(ctx, events)) as messages:
            async for message in messages:
                yield message

    @both_streams
    async def Explore(
        self, requests: AsyncIterator[generation_pb2.ExploreRequest]
    ) -> AsyncIterator[generation_pb2.ExploreResponse]:
        first = await anext(aiter(requests), None)
        if first is None or first.WhichOneof("command") != "open":
            raise InvalidRequest("open: must be the first message")
        commands = (command_of(request) async for request in requests)
        ctx, service, order = context_of(first.open.meta), self._service, forest_of(first.open)
        explored = traced_stream(
            ctx, EXPLORING, stream=lambda stage: service.explore(stage.ctx, order, commands)
        )
        events = charged(self.door, ctx, explored, _tokens_of)
        async with aclosing(events):
            async for event in events:
                yield EXPLORED.to_pb(event)

    @unary
    async def DescribeModel(
        self, request: generation_pb2.DescribeModelRequest, ctx: RequestContext
    ) -> generation_pb2.DescribeModelResponse:
        return MODEL.to_pb(self._service.describe(ctx.tenant))

    @unary
    async def SuspendVerdict(
        self, request: generation_pb2.SuspendVerdictRequest, ctx: RequestContext
    ) -> generation_pb2.SuspendVerdictResponse:
        kept = await self._service.suspend(request.verdict, request.reason)
        return generation_pb2.SuspendVerdictResponse(kept=kept)

    async def healthy(self, ctx: RequestContext) -> ServiceHealth:
        if not self._service.alive:
            raise Unavailable("the engine has stopped and is being replaced")
        await self._service.refresh(ctx)
        return ServiceHealth(self.application, ready=True, facts=self._service.facts())

    def check_health(self) -> None:
        """Called by Serve, which replaces the replica when this raises.

        Raises:
            Unavailable: the engine has stopped. A model that could not be loaded is not dead: a new replica
            would not help.
        """
        if isinstance(self._loaded, Generator) and not self._loaded.alive:
            raise Unavailable("the engine has stopped")


def _tokens_of(event: object) -> int:
    match event:
        case DoneEvent(usage=usage):
            return usage.prompt_tokens + usage.generated_tokens
        case PrefilledChunk(existed=False, token_ids=ids):
            return len(ids)
    return 0
