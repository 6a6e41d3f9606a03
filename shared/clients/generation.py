"""Client of the generator: chunks are prefilled, questions answered and live forests explored. Torch-free."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from protos.kvquilt.v1 import generation_pb2
from shared.clients.service import ServiceClient, meta_of
from shared.clients.transport import ClientStreaming
from shared.generation.described import ModelDescription, PrefilledChunk, RecomputedChunk
from shared.generation.forest import Edit
from shared.generation.orders import ForestOrder, GenerationOrder
from shared.generation.pieces import Piece
from shared.generation.told import DoneEvent, ExploringEvent, GenerationEvent
from shared.request import RequestContext
from shared.streams import mapped, until
from shared.wire.asked import forest_to_pb, order_to_pb, piece_to_pb, prefix_to_pb
from shared.wire.forest import COMMANDS, EXPLORED
from shared.wire.told import GENERATED, MODEL, PREFILLED, RECOMPUTED

APPLICATION = "generator"
SERVICE = "kvquilt.v1.Generation"


class GenerationClient(ServiceClient):
    async def describe(self, ctx: RequestContext) -> ModelDescription:
        request = generation_pb2.DescribeModelRequest()
        return MODEL.of(await self.ask(ctx, "DescribeModel", request, generation_pb2.DescribeModelResponse))

    async def suspend(self, ctx: RequestContext, verdict: str, reason: str) -> bool:
        """Mode ``auto`` no longer obeys ``verdict``; returns whether that outlives the replica.

        Raises:
            NotFound: the replica that was reached serves no such verdict.
        """
        request = generation_pb2.SuspendVerdictRequest(verdict=verdict, reason=reason)
        response = await self.ask(ctx, "SuspendVerdict", request, generation_pb2.SuspendVerdictResponse)
        return response.kept

    def prefill(
        self,
        ctx: RequestContext,
        chunks: Sequence[Piece],
        prefix: Piece | None = None,
        encoding: str = "",
        chained: bool = False,
    ) -> AsyncGenerator[PrefilledChunk, None]:
        """One value per chunk, in order, each once its KV is durable. ``prefix`` None: the model's own.
        ``encoding`` empty: what is stored stays as it is; else every chunk is stored in it afterwards.
        ``chained``: the chunks are a document's, in order, each computed behind those before it."""
        request = generation_pb2.PrefillRequest(
            prefix=prefix_to_pb(prefix),
            chunks=map(piece_to_pb, chunks),
            encoding=encoding,
            chained=chained,
        )
        return self.follow(ctx, "Prefill", request, generation_pb2.PrefillResponse, PREFILLED.of)

    def recompute(
        self, ctx: RequestContext, chunks: Sequence[Piece], prefix: Piece | None = None
    ) -> AsyncGenerator[RecomputedChunk, None]:
        """Computes the KV of stored chunks once more and tells how far it is from what is stored; in order.

        Raises:
            NotFound: a chunk is not stored.
        """
        request = generation_pb2.RecomputeRequest(
            prefix=prefix_to_pb(prefix), chunks=map(piece_to_pb, chunks)
        )
        return self.follow(ctx, "Recompute", request, generation_pb2.RecomputeResponse, RECOMPUTED.of)

    def generate(self, ctx: RequestContext, order: GenerationOrder) -> AsyncGenerator[GenerationEvent, None]:
        """Tokens of all branches as they come; the last value is ``DoneEvent``.

        Raises:
            Unavailable: the stream ended without saying that the answer is whole.
        """
        events = self.follow(
            ctx, "Generate", order_to_pb(order), generation_pb2.GenerateResponse, GENERATED.of
        )
        return until(DoneEvent, events, "the generator ended the answer before it was whole; retry")


class ForestClient:
    """Its transport streams requests: gRPC does, a Serve handle cannot."""

    def __init__(self, transport: ClientStreaming) -> None:
        self._transport = transport

    def explore(
        self, ctx: RequestContext, order: ForestOrder, commands: AsyncIterator[Edit]
    ) -> AsyncGenerator[ExploringEvent, None]:
        """A live forest that obeys ``commands`` and is closed when they end; the last value is ``DoneEvent``.

        Raises:
            Unavailable: the stream ended without it.
        """
        opened = forest_to_pb(order)
        opened.meta.CopyFrom(meta_of(ctx))

        async def requests() -> AsyncIterator[generation_pb2.ExploreRequest]:
            yield generation_pb2.ExploreRequest(open=opened)
            async for command in commands:
                yield COMMANDS.to_pb(command)

        stream = self._transport.both_streams(
            "Explore", requests(), generation_pb2.ExploreResponse, ctx.remaining_s
        )
        events = mapped(stream, EXPLORED.of)
        return until(DoneEvent, events, "the generator ended the forest before it was closed; retry")
