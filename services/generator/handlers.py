"""``kvquilt.v1.Generation``: protos to domain values, the call, and back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from protos.kvquilt.v1 import common_pb2, generation_pb2
from services.generator.margins import MarginWriter
from services.generator.service import Generator
from shared.clients.health import ServiceHealth, health_to_pb
from shared.errors import InvalidRequest, KvquiltError, Unavailable
from shared.generation.told import Event, GenerationEvent
from shared.request import RequestContext
from shared.rpc import both_streams, context_of, server_stream, unary
from shared.wire.asked import forest_of, order_of, pieces_of, prefix_of
from shared.wire.forest import command_of, explored_to_pb
from shared.wire.told import model_to_pb, prefilled_to_pb, response_to_pb


class GenerationServicer:
    """``generator`` is an error when the model could not be loaded: every call then answers with it, and
    Health says it."""

    def __init__(self, generator: Generator | KvquiltError) -> None:
        self._loaded = generator

    @server_stream
    async def Prefill(
        self, request: generation_pb2.PrefillRequest, ctx: RequestContext
    ) -> AsyncIterator[generation_pb2.PrefillResponse]:
        chunks = pieces_of(request.chunks, "chunks")
        prefilled = self._generator.prefill(ctx, prefix_of(request), chunks, request.encoding)
        async with aclosing(prefilled):
            async for done in prefilled:
                yield prefilled_to_pb(done)

    @server_stream
    async def Generate(
        self, request: generation_pb2.GenerateRequest, ctx: RequestContext
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        generator, order = self._generator, order_of(request)
        planned, margins = generator.plan(ctx, order), order.decoding.margins
        events: AsyncGenerator[GenerationEvent | Event, None]
        if margins is None:
            events = generator.generate(ctx, planned)
        else:
            events = MarginWriter(generator, ctx, planned, margins).answer()
        async with aclosing(events):
            async for event in events:
                yield response_to_pb(event)

    @both_streams
    async def Explore(
        self, requests: AsyncIterator[generation_pb2.ExploreRequest]
    ) -> AsyncIterator[generation_pb2.ExploreResponse]:
        first = await anext(aiter(requests), None)
        if first is None or first.WhichOneof("command") != "open":
            raise InvalidRequest("open: must be the first message")
        commands = (command_of(request) async for request in requests)
        events = self._generator.explore(context_of(first.open.meta), forest_of(first.open), commands)
        async with aclosing(events):
            async for event in events:
                yield explored_to_pb(event)

    @unary(generation_pb2.DescribeModelResponse)
    async def DescribeModel(
        self, request: generation_pb2.DescribeModelRequest, ctx: RequestContext
    ) -> generation_pb2.DescribeModelResponse:
        return model_to_pb(self._generator.describe())

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
