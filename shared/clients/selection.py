"""Client of the selector: which of a context's tokens are worth recomputing, and the auxiliary's KV made
durable. Torch-free."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from protos.kvquilt.v1 import selection_pb2 as pb
from shared.clients.service import ServiceClient
from shared.generation.selection import (
    AuxiliaryDescription,
    EncodedChunk,
    SelectedTokens,
    SelectionChunk,
    SelectionOrder,
)
from shared.request import RequestContext
from shared.wire.selection import CHUNK, DESCRIPTION, ENCODED, ORDER, selected_of

APPLICATION = "selector"
SERVICE = "kvquilt.v1.Selection"


class SelectionClient(ServiceClient):
    async def select(self, ctx: RequestContext, order: SelectionOrder) -> tuple[SelectedTokens, ...]:
        """One selection per question, each as if it were asked alone.

        Raises:
            InvalidRequest: no question or an empty one, a ratio outside 0 to 1.
            ModelMismatch: a chunk's text does not give its token ids by the primary's tokenizer.
            ContextTooLong: a single chunk with a question is longer than the auxiliary model can read.
        """
        return selected_of(await self.ask(ctx, "Select", ORDER.to_pb(order), pb.SelectResponse))

    def encode(
        self, ctx: RequestContext, chunks: Sequence[SelectionChunk]
    ) -> AsyncGenerator[EncodedChunk, None]:
        """One value per chunk, in order, each once its auxiliary KV is durable."""
        request = pb.EncodeRequest(chunks=map(CHUNK.to_pb, chunks))
        return self.follow(ctx, "Encode", request, pb.EncodeResponse, ENCODED.of)

    async def describe(self, ctx: RequestContext) -> AuxiliaryDescription:
        request = pb.DescribeAuxiliaryRequest()
        return DESCRIPTION.of(await self.ask(ctx, "DescribeAuxiliary", request, pb.DescribeAuxiliaryResponse))
