"""Client of the generator: chunks are prefilled, questions answered and live forests explored. Torch-free."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from protos.kvquilt.v1 import generation_pb2
from shared.clients.health import ServiceHealth, health, meta_of
from shared.clients.transport import ClientStreaming, Transport
from shared.errors import Unavailable
from shared.generation.described import ModelDescription, PrefilledChunk
from shared.generation.forest import Edit
from shared.generation.orders import ForestOrder, GenerationOrder
from shared.generation.pieces import Piece
from shared.generation.told import DoneEvent, ExploringEvent, GenerationEvent
from shared.request import RequestContext
from shared.wire.asked import forest_to_pb, order_to_pb, piece_to_pb, prefix_to_pb
from shared.wire.forest import command_to_pb, explored_of
from shared.wire.told import model_of, prefilled_of, response_of

APPLICATION = "generator"
SERVICE = "kvquilt.v1.Generation"


class GenerationClient:
    """Every method raises ``shared.errors``. A stream that is closed early cancels the work behind it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def describe(self, ctx: RequestContext) -> ModelDescription:
        request = generation_pb2.DescribeModelRequest(meta=meta_of(ctx))
        return model_of(
            await self._transport.unary(
                "DescribeModel", request, generation_pb2.DescribeModelResponse, ctx.remaining_s
            )
        )

    async def prefill(
        self, ctx: RequestContext, chunks: Sequence[Piece], prefix: Piece | None = None, encoding: str = ""
    ) -> AsyncGenerator[PrefilledChunk, None]:
        """One value per chunk, in order, each once its KV is durable. ``prefix`` None: the model's own.
        ``encoding`` empty: what is stored stays as it is; else every chunk is stored in it afterwards."""
        request = generation_pb2.PrefillRequest(
            meta=meta_of(ctx), prefix=prefix_to_pb(prefix), chunks=map(piece_to_pb, chunks), encoding=encoding
        )
        stream = self._transport.stream("Prefill", request, generation_pb2.PrefillResponse, ctx.remaining_s)
        async with aclosing(stream):
            async for pb in stream:
                yield prefilled_of(pb)

    async def generate(
        self, ctx: RequestContext, order: GenerationOrder
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Tokens of all branches as they come; the last value is ``DoneEvent``.

        Raises:
            Unavailable: the stream ended without saying that the answer is whole.
        """
        request = order_to_pb(order, meta_of(ctx))
        stream = self._transport.stream("Generate", request, generation_pb2.GenerateResponse, ctx.remaining_s)
        async with aclosing(stream):
            async for pb in stream:
                event = response_of(pb)
                yield event
                if isinstance(event, DoneEvent):
                    return
        raise Unavailable("the generator ended the answer before it was whole; retry")

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        return await health(self._transport, ctx)


class ForestClient:
    """Its transport streams requests: gRPC does, a Serve handle cannot."""

    def __init__(self, transport: ClientStreaming) -> None:
        self._transport = transport

    async def explore(
        self, ctx: RequestContext, order: ForestOrder, commands: AsyncIterator[Edit]
    ) -> AsyncGenerator[ExploringEvent, None]:
        """A live forest that obeys ``commands`` and is closed when they end; the last value is ``DoneEvent``.

        Raises:
            Unavailable: the stream ended without it.
        """
        opened = forest_to_pb(order, meta_of(ctx))

        async def requests() -> AsyncIterator[generation_pb2.ExploreRequest]:
            yield generation_pb2.ExploreRequest(open=opened)
            async for command in commands:
                yield command_to_pb(command)

        stream = self._transport.both_streams(
            "Explore", requests(), generation_pb2.ExploreResponse, ctx.remaining_s
        )
        async with aclosing(stream):
            async for pb in stream:
                event = explored_of(pb)
                yield event
                if isinstance(event, DoneEvent):
                    return
        raise Unavailable("the generator ended the forest before it was closed; retry")
