"""Client of the generator: chunks are prefilled and questions answered by id or by text. Torch-free."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from protos.kvquilt.v1 import common_pb2, generation_pb2
from shared.clients.decoding import (
    Chosen,
    Decoding,
    Margin,
    MarginToken,
    chosen_of,
    decoding_to_pb,
    margin_of,
    margin_token_of,
)
from shared.clients.health import ServiceHealth, health, meta_of
from shared.clients.recompute import Ape, Recompute, Selected, ape_to_pb, recompute_to_pb, selected_of
from shared.clients.transport import Transport
from shared.errors import InvalidRequest, Unavailable
from shared.request import RequestContext

APPLICATION = "generator"
SERVICE = "kvquilt.v1.Generation"

Piece = str | tuple[int, ...]
"""Text, which goes through the model's template and tokenizer, or the very token ids."""

Reuse = Literal[
    "full",
    "reordered",
    "composite",
    "tokens",
    "epic",
    "random",
    "query_attention",
    "cacheblend",
    "ape",
    "cacheclip",
    "auto",
]
FinishReason = Literal["stop", "length"]

_REUSE: dict[Reuse | None, common_pb2.ReuseMode] = {
    None: common_pb2.REUSE_MODE_UNSPECIFIED,
    "full": common_pb2.REUSE_MODE_FULL,
    "reordered": common_pb2.REUSE_MODE_REORDERED,
    "composite": common_pb2.REUSE_MODE_COMPOSITE,
    "tokens": common_pb2.REUSE_MODE_TOKENS,
    "epic": common_pb2.REUSE_MODE_EPIC,
    "random": common_pb2.REUSE_MODE_RANDOM,
    "query_attention": common_pb2.REUSE_MODE_QUERY_ATTENTION,
    "cacheblend": common_pb2.REUSE_MODE_CACHEBLEND,
    "ape": common_pb2.REUSE_MODE_APE,
    "cacheclip": common_pb2.REUSE_MODE_CACHECLIP,
    "auto": common_pb2.REUSE_MODE_AUTO,
}
_REUSE_OF: dict[int, Reuse | None] = {number: mode for mode, number in _REUSE.items()}
FINISH: dict[int, FinishReason] = {
    common_pb2.FINISH_REASON_STOP: "stop",
    common_pb2.FINISH_REASON_LENGTH: "length",
}


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """A chunk whose ids are known. ``chunk_id`` may be empty: the generator derives it from the ids anyway.
    ``text``: what they were made of, without the template; empty: not known."""

    chunk_id: str
    token_ids: tuple[int, ...]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Defaults are the service's. Ranges are checked by the service."""

    max_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """``tokenizer_hash`` is empty for a model without a tokenizer, which is served by ids only.
    ``kv_encoding``: how new KV is stored (exact, int8, …)."""

    model: str
    fingerprint: str
    tokenizer_hash: str
    prefix_ids: tuple[int, ...]
    chunk_template: str
    question_template: str
    max_positions: int
    dtype: str
    kv_bytes_per_token: int
    device: str
    eos_ids: tuple[int, ...]
    kv_encoding: str = ""


@dataclass(frozen=True, slots=True)
class PrefilledChunk:
    """One chunk whose KV is durable. ``existed``: it was so before the call."""

    index: int
    chunk_id: str
    token_ids: tuple[int, ...]
    existed: bool


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of tokens; prompt = reused + recomputed. ``loaded_tokens``: those reused ones that were stored,
    but not resident; ``selected_tokens``: those recomputed ones that the mode chose; ``picked_tokens``,
    ``grouped_tokens``: of the selector's model.
    ``reuse``: the mode that was really used; ``note``: why it is not the one that was asked for."""

    prompt_tokens: int
    reused_tokens: int
    recomputed_tokens: int
    generated_tokens: int
    loaded_tokens: int = 0
    selected_tokens: int = 0
    picked_tokens: int = 0
    grouped_tokens: int = 0
    reuse: Reuse | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds; see the proto for what each stage covers."""

    retrieve_ms: float = 0.0
    queue_ms: float = 0.0
    load_ms: float = 0.0
    prefill_ms: float = 0.0
    first_token_ms: float = 0.0
    decode_ms: float = 0.0
    total_ms: float = 0.0
    engine_ttft_ms: float = 0.0
    select_ms: float = 0.0
    select_wait_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    question: int
    sample: int
    token_id: int
    text: str
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class BranchDone:
    """``text``: what was held back as the possible beginning of a stop string and was none. ``score``: mean
    log-probability of its tokens, or what a beam was ranked by."""

    question: int
    sample: int
    finish_reason: FinishReason
    text: str
    generated_tokens: int
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class GenerationDone:
    usage: Usage
    timings: Timings
    chunk_ids: tuple[str, ...] = field(default=())


GenerationEvent = Selected | GeneratedToken | BranchDone | Chosen | MarginToken | Margin | GenerationDone


class GenerationClient:
    """Every method raises ``shared.errors``. A stream that is closed early cancels the work behind it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def describe(self, ctx: RequestContext) -> ModelDescription:
        request = generation_pb2.DescribeModelRequest(meta=meta_of(ctx))
        pb = await self._transport.unary(
            "DescribeModel", request, generation_pb2.DescribeModelResponse, ctx.remaining_s
        )
        return ModelDescription(
            model=pb.model,
            fingerprint=pb.fingerprint,
            tokenizer_hash=pb.tokenizer_hash,
            prefix_ids=tuple(pb.prefix_ids),
            chunk_template=pb.chunk_template,
            question_template=pb.question_template,
            max_positions=pb.max_positions,
            dtype=pb.dtype,
            kv_bytes_per_token=pb.kv_bytes_per_token,
            device=pb.device,
            eos_ids=tuple(pb.eos_ids),
            kv_encoding=pb.kv_encoding,
        )

    async def prefill(
        self,
        ctx: RequestContext,
        chunks: Sequence[ChunkRef | Piece],
        prefix: Piece | None = None,
        encoding: str = "",
    ) -> AsyncGenerator[PrefilledChunk, None]:
        """One value per chunk, in order, each once its KV is durable. ``prefix`` None: the model's own.
        ``encoding`` empty: what is stored stays as it is; else every chunk is stored in it afterwards."""
        request = generation_pb2.PrefillRequest(
            meta=meta_of(ctx),
            prefix=optional_to_pb(prefix),
            chunks=map(chunk_to_pb, chunks),
            encoding=encoding,
        )
        stream = self._transport.stream("Prefill", request, generation_pb2.PrefillResponse, ctx.remaining_s)
        async with aclosing(stream):
            async for pb in stream:
                yield PrefilledChunk(pb.index, pb.chunk_id, tuple(pb.token_ids), pb.existed)

    async def generate(
        self,
        ctx: RequestContext,
        chunks: Sequence[ChunkRef | Piece],
        questions: Sequence[Piece],
        reuse: Reuse | None = None,
        sampling: Sampling | None = None,
        prefix: Piece | None = None,
        decoding: Decoding | None = None,
        recompute: Recompute | None = None,
        ape: Ape | None = None,
        explain: bool = False,
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Tokens of all branches as they come; the last value is ``GenerationDone``. ``prefix`` None: the
        model's own; ``()``: none. ``explain``: ``Selected`` brings scores and spans.

        Raises:
            Unavailable: the stream ended without saying that the answer is whole.
        """
        request = generation_pb2.GenerateRequest(
            meta=meta_of(ctx),
            prefix=optional_to_pb(prefix),
            chunks=map(chunk_to_pb, chunks),
            questions=map(piece_to_pb, questions),
            reuse=reuse_to_pb(reuse),
            sampling=sampling_to_pb(sampling or Sampling()),
            decoding=decoding_to_pb(decoding or Decoding()),
            recompute=recompute_to_pb(recompute),
            ape=ape_to_pb(ape),
            explain=explain,
        )
        stream = self._transport.stream("Generate", request, generation_pb2.GenerateResponse, ctx.remaining_s)
        async with aclosing(stream):
            async for pb in stream:
                event = _event_of(pb)
                yield event
                if isinstance(event, GenerationDone):
                    return
        raise Unavailable("the generator ended the answer before it was whole; retry")

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        return await health(self._transport, ctx)


def piece_to_pb(piece: Piece) -> generation_pb2.Piece:
    if isinstance(piece, str):
        return generation_pb2.Piece(text=piece)
    return generation_pb2.Piece(token_ids=generation_pb2.TokenIds(ids=piece))


def optional_to_pb(piece: Piece | None) -> generation_pb2.Piece | None:
    return None if piece is None else piece_to_pb(piece)


def chunk_to_pb(chunk: ChunkRef | Piece) -> generation_pb2.ChunkInput:
    if isinstance(chunk, ChunkRef):
        return generation_pb2.ChunkInput(
            chunk_id=chunk.chunk_id, piece=piece_to_pb(chunk.token_ids), text=chunk.text
        )
    return generation_pb2.ChunkInput(piece=piece_to_pb(chunk))


def reuse_to_pb(reuse: Reuse | None) -> common_pb2.ReuseMode:
    """None: the service's default."""
    return _REUSE[reuse]


def reuse_of(number: int) -> Reuse | None:
    """None: the service's default.

    Raises:
        InvalidRequest: it is no mode that this version knows.
    """
    if number not in _REUSE_OF:
        raise InvalidRequest(
            f"reuse: {number} is not a mode of this service; it has {', '.join(get_args(Reuse))}"
        )
    return _REUSE_OF[number]


def sampling_to_pb(sampling: Sampling) -> common_pb2.Sampling:
    return common_pb2.Sampling(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed,
        n=sampling.n,
        stop=sampling.stop,
        ignore_eos=sampling.ignore_eos,
        top_logprobs=sampling.top_logprobs,
    )


def _event_of(pb: generation_pb2.GenerateResponse) -> GenerationEvent:
    if pb.HasField("token"):
        token = pb.token
        top = tuple((t.token_id, t.logprob) for t in token.top_logprobs)
        return GeneratedToken(token.question, token.sample, token.token_id, token.text, token.logprob, top)
    if pb.HasField("branch_done"):
        end = pb.branch_done
        return BranchDone(
            end.question, end.sample, FINISH[end.finish_reason], end.text, end.generated_tokens, end.score
        )
    if pb.HasField("chosen"):
        return chosen_of(pb.chosen)
    if pb.HasField("margin_token"):
        return margin_token_of(pb.margin_token)
    if pb.HasField("margin"):
        return margin_of(pb.margin)
    if pb.HasField("selected"):
        return selected_of(pb.selected)
    return done_of(pb.done)


def done_of(pb: generation_pb2.GenerateDone) -> GenerationDone:
    return GenerationDone(usage_of(pb.usage), timings_of(pb.timings), tuple(pb.chunk_ids))


def usage_of(pb: common_pb2.Usage) -> Usage:
    return Usage(
        prompt_tokens=pb.prompt_tokens,
        reused_tokens=pb.reused_tokens,
        recomputed_tokens=pb.recomputed_tokens,
        generated_tokens=pb.generated_tokens,
        loaded_tokens=pb.loaded_tokens,
        selected_tokens=pb.selected_tokens,
        picked_tokens=pb.picked_tokens,
        grouped_tokens=pb.grouped_tokens,
        reuse=_REUSE_OF.get(pb.reuse),
        note=pb.note,
    )


def usage_to_pb(usage: Usage) -> common_pb2.Usage:
    values = {field.name: getattr(usage, field.name) for field in fields(usage)}
    return common_pb2.Usage(**values | {"reuse": reuse_to_pb(usage.reuse)})


def timings_of(pb: common_pb2.Timings) -> Timings:
    return Timings(
        retrieve_ms=pb.retrieve_ms,
        queue_ms=pb.queue_ms,
        load_ms=pb.load_ms,
        prefill_ms=pb.prefill_ms,
        first_token_ms=pb.first_token_ms,
        decode_ms=pb.decode_ms,
        total_ms=pb.total_ms,
        engine_ttft_ms=pb.engine_ttft_ms,
        select_ms=pb.select_ms,
        select_wait_ms=pb.select_wait_ms,
    )
