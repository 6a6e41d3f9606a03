"""Client of the selector: which of a context's tokens are worth recomputing, and the auxiliary's KV made
durable. Torch-free."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from protos.kvquilt.v1 import selection_pb2 as pb
from shared.clients.health import ServiceHealth, health, meta_of
from shared.clients.transport import Transport
from shared.request import RequestContext

APPLICATION = "selector"
SERVICE = "kvquilt.v1.Selection"

Grouping = Literal["budget", "paper", "sliding"]
Reading = Literal["stitched", "each"]

_GROUPING: dict[Grouping, pb.Grouping] = {
    "budget": pb.GROUPING_BUDGET,
    "paper": pb.GROUPING_PAPER,
    "sliding": pb.GROUPING_SLIDING,
}
_READING: dict[Reading | None, pb.Reading] = {
    None: pb.READING_UNSPECIFIED,
    "stitched": pb.READING_STITCHED,
    "each": pb.READING_EACH,
}
_GROUPING_OF = {number: grouping for grouping, number in _GROUPING.items()}
_READING_OF = {number: reading for reading, number in _READING.items()}


@dataclass(frozen=True, slots=True)
class SelectionChunk:
    """``text``: exactly what the primary's ``token_ids`` were made of, the primary's chunk template
    included."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SelectionTimings:
    """Milliseconds; see the proto for what each stage covers. ``encode_ms``: KV of the auxiliary that was not
    stored."""

    load_ms: float = 0.0
    encode_ms: float = 0.0
    score_ms: float = 0.0
    total_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class SelectedTokens:
    """
    tokens: of the primary, counted from 0 over all chunks in order; ascending.
    scores: one per token of the primary's context.
    reading: how the chunks were scored; None: they were not, since the ratio left nothing to choose.
    num_picked: the auxiliary's tokens that the ratio asked for.
    num_grouped: the auxiliary's tokens that grouping made of them.
    """

    tokens: tuple[int, ...]
    scores: tuple[float, ...]
    reading: Reading | None
    num_picked: int
    num_grouped: int
    timings: SelectionTimings


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """One chunk whose auxiliary KV is durable. ``num_tokens``: of the auxiliary. ``existed``: it was durable
    before the call."""

    index: int
    auxiliary_id: str
    num_tokens: int
    existed: bool


@dataclass(frozen=True, slots=True)
class AuxiliaryDescription:
    model: str
    fingerprint: str
    tokenizer_hash: str
    prefix_ids: tuple[int, ...]
    question_template: str
    max_positions: int
    dtype: str
    kv_bytes_per_token: int
    device: str
    primary_tokenizer_hash: str

    @property
    def identity(self) -> str:
        """Of all that decides which KV a text gets, 32 hex digits: what was encoded under another identity is
        not used."""
        decides = repr((self.fingerprint, self.tokenizer_hash, self.prefix_ids))
        return hashlib.blake2b(decides.encode(), digest_size=16).hexdigest()


class SelectionClient:
    """Every method raises ``shared.errors``; a call that is given up ends the work behind it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def select(
        self,
        ctx: RequestContext,
        chunks: Sequence[SelectionChunk],
        questions: Sequence[str],
        ratio: float,
        grouping: Grouping = "budget",
        reading: Reading = "stitched",
    ) -> SelectedTokens:
        """One selection for all questions, by the mean of their scores.

        Raises:
            InvalidRequest: no question or an empty one, a ratio outside 0 to 1.
            ModelMismatch: a chunk's text does not give its token ids by the primary's tokenizer.
            ContextTooLong: a single chunk with a question is longer than the auxiliary model can read.
        """
        request = pb.SelectRequest(
            meta=meta_of(ctx),
            chunks=map(_chunk_to_pb, chunks),
            questions=questions,
            ratio=ratio,
            grouping=_GROUPING[grouping],
            reading=_READING[reading],
        )
        return _selected_of(
            await self._transport.unary("Select", request, pb.SelectResponse, ctx.remaining_s)
        )

    async def encode(
        self, ctx: RequestContext, chunks: Sequence[SelectionChunk]
    ) -> AsyncGenerator[EncodedChunk, None]:
        """One value per chunk, in order, each once its auxiliary KV is durable."""
        request = pb.EncodeRequest(meta=meta_of(ctx), chunks=map(_chunk_to_pb, chunks))
        async with aclosing(
            self._transport.stream("Encode", request, pb.EncodeResponse, ctx.remaining_s)
        ) as responses:
            async for response in responses:
                yield EncodedChunk(
                    response.index, response.auxiliary_id, response.num_tokens, response.existed
                )

    async def describe(self, ctx: RequestContext) -> AuxiliaryDescription:
        request = pb.DescribeAuxiliaryRequest(meta=meta_of(ctx))
        response = await self._transport.unary(
            "DescribeAuxiliary", request, pb.DescribeAuxiliaryResponse, ctx.remaining_s
        )
        return AuxiliaryDescription(
            model=response.model,
            fingerprint=response.fingerprint,
            tokenizer_hash=response.tokenizer_hash,
            prefix_ids=tuple(response.prefix_ids),
            question_template=response.question_template,
            max_positions=response.max_positions,
            dtype=response.dtype,
            kv_bytes_per_token=response.kv_bytes_per_token,
            device=response.device,
            primary_tokenizer_hash=response.primary_tokenizer_hash,
        )

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        return await health(self._transport, ctx)


def grouping_of(number: pb.Grouping) -> Grouping:
    """Unknown numbers count as unspecified, as proto3 asks for."""
    return _GROUPING_OF.get(number, "budget")


def reading_of(number: pb.Reading) -> Reading | None:
    return _READING_OF.get(number)


def chunk_of(message: pb.SelectionChunk) -> SelectionChunk:
    return SelectionChunk(message.text, tuple(message.token_ids))


def description_to_pb(described: AuxiliaryDescription) -> pb.DescribeAuxiliaryResponse:
    return pb.DescribeAuxiliaryResponse(**dataclasses.asdict(described))


def selected_to_pb(selected: SelectedTokens) -> pb.SelectResponse:
    timings = selected.timings
    return pb.SelectResponse(
        tokens=selected.tokens,
        scores=selected.scores,
        reading=_READING[selected.reading],
        num_picked=selected.num_picked,
        num_grouped=selected.num_grouped,
        timings=pb.SelectionTimings(
            load_ms=timings.load_ms,
            encode_ms=timings.encode_ms,
            score_ms=timings.score_ms,
            total_ms=timings.total_ms,
        ),
    )


def _selected_of(message: pb.SelectResponse) -> SelectedTokens:
    timings = message.timings
    return SelectedTokens(
        tokens=tuple(message.tokens),
        scores=tuple(message.scores),
        reading=reading_of(message.reading),
        num_picked=message.num_picked,
        num_grouped=message.num_grouped,
        timings=SelectionTimings(timings.load_ms, timings.encode_ms, timings.score_ms, timings.total_ms),
    )


def _chunk_to_pb(chunk: SelectionChunk) -> pb.SelectionChunk:
    return pb.SelectionChunk(text=chunk.text, token_ids=chunk.token_ids)
