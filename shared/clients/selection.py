"""Client of the selector: which of a context's tokens are worth recomputing, and the auxiliary's KV made
durable. Torch-free."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from protos.kvquilt.v1 import selection_pb2 as pb
from shared.clients.health import ServiceHealth, health, meta_of
from shared.clients.transport import Transport
from shared.generation.selection import (
    AuxiliaryDescription,
    EncodedChunk,
    SelectedTokens,
    SelectionChunk,
    SelectionOrder,
)
from shared.request import RequestContext
from shared.wire.selection import chunk_to_pb, description_of, encoded_of, order_to_pb, selected_of

APPLICATION = "selector"
SERVICE = "kvquilt.v1.Selection"


class SelectionClient:
    """Every method raises ``shared.errors``; a call that is given up ends the work behind it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def select(self, ctx: RequestContext, order: SelectionOrder) -> tuple[SelectedTokens, ...]:
        """One selection per question, each as if it were asked alone.

        Raises:
            InvalidRequest: no question or an empty one, a ratio outside 0 to 1.
            ModelMismatch: a chunk's text does not give its token ids by the primary's tokenizer.
            ContextTooLong: a single chunk with a question is longer than the auxiliary model can read.
        """
        request = order_to_pb(order, meta_of(ctx))
        return selected_of(await self._transport.unary("Select", request, pb.SelectResponse, ctx.remaining_s))

    async def encode(
        self, ctx: RequestContext, chunks: Sequence[SelectionChunk]
    ) -> AsyncGenerator[EncodedChunk, None]:
        """One value per chunk, in order, each once its auxiliary KV is durable."""
        request = pb.EncodeRequest(meta=meta_of(ctx), chunks=map(chunk_to_pb, chunks))
        async with aclosing(
            self._transport.stream("Encode", request, pb.EncodeResponse, ctx.remaining_s)
        ) as responses:
            async for response in responses:
                yield encoded_of(response)

    async def describe(self, ctx: RequestContext) -> AuxiliaryDescription:
        request = pb.DescribeAuxiliaryRequest(meta=meta_of(ctx))
        return description_of(
            await self._transport.unary(
                "DescribeAuxiliary", request, pb.DescribeAuxiliaryResponse, ctx.remaining_s
            )
        )

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        return await health(self._transport, ctx)
