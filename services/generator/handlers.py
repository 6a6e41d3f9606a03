"""``kvquilt.v1.Generation``: protos to domain values, the call, and back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing

from protos.kvquilt.v1 import common_pb2, generation_pb2
from services.generator.margins import (
    INSTRUCTION,
    MAX_TOKENS,
    NO,
    RELEVANCE,
    YES,
    MarginEvent,
    MarginsOrder,
    MarginTokenEvent,
    MarginWriter,
)
from services.generator.prompts import IdsPiece, Piece, TextPiece
from services.generator.serving import GenerationOrder, Generator
from shared.clients.decoding import Decoding, Margins, decoding_of
from shared.clients.health import ServiceHealth, health_to_pb
from shared.engine.types import (
    Beams,
    BranchDoneEvent,
    Choice,
    ChoiceRule,
    ChosenEvent,
    ChunkStoredEvent,
    DoneEvent,
    EarlyStopping,
    Event,
    FailedEvent,
    FinishReason,
    GenerateRequest,
    ReuseMode,
    SamplingParams,
    Timings,
    TokenEvent,
)
from shared.errors import InvalidRequest, KvquiltError, Unavailable
from shared.request import RequestContext
from shared.rpc import server_stream, unary

_REUSE: dict[int, ReuseMode | None] = {
    common_pb2.REUSE_MODE_UNSPECIFIED: None,
    common_pb2.REUSE_MODE_FULL: ReuseMode.FULL,
    common_pb2.REUSE_MODE_REORDERED: ReuseMode.REORDERED,
    common_pb2.REUSE_MODE_COMPOSITE: ReuseMode.COMPOSITE,
}
_FINISH = {FinishReason.STOP: common_pb2.FINISH_REASON_STOP, FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH}


class GenerationServicer:
    """``generator`` is an error when the model could not be loaded: every call then answers with it, and Health says it."""

    def __init__(self, generator: Generator | KvquiltError) -> None:
        self._loaded = generator

    @server_stream
    async def Prefill(
        self, request: generation_pb2.PrefillRequest, ctx: RequestContext
    ) -> AsyncIterator[generation_pb2.PrefillResponse]:
        prefix = _piece(request.prefix, "prefix") if request.HasField("prefix") else None
        prefilled = self._generator.prefill(ctx, prefix, _chunks(request.chunks), request.encoding)
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
        generator, order, decoding = self._generator, _order(request), decoding_of(request.decoding)
        planned = generator.plan(ctx, order)
        events: AsyncGenerator[Event | MarginTokenEvent | MarginEvent, None]
        if decoding.margins is None:
            events = generator.generate(ctx, planned)
        else:
            events = MarginWriter(generator, ctx, order, _margins(decoding.margins)).answer()
        async with aclosing(events):
            async for event in events:
                yield _response(event, planned)

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
    async def Health(self, request: common_pb2.HealthRequest, ctx: RequestContext) -> common_pb2.HealthResponse:
        return health_to_pb(self.health())

    def health(self) -> ServiceHealth:
        if isinstance(self._loaded, KvquiltError):
            return ServiceHealth("generator", ready=False, detail=self._loaded.detail)
        if not self._loaded.alive:
            return ServiceHealth("generator", ready=False, detail="the engine has stopped and is being replaced")
        return ServiceHealth("generator", ready=True, facts=self._loaded.facts())

    def raise_if_dead(self) -> None:
        """
        Raises:
            Unavailable: the engine has stopped. A model that could not be loaded is not dead: a new replica would not help.
        """
        if isinstance(self._loaded, Generator) and not self._loaded.alive:
            raise Unavailable("the engine has stopped")

    @property
    def _generator(self) -> Generator:
        if isinstance(self._loaded, KvquiltError):
            raise self._loaded
        return self._loaded


def _order(pb: generation_pb2.GenerateRequest) -> GenerationOrder:
    if pb.reuse not in _REUSE:
        raise InvalidRequest(f"reuse: {pb.reuse} is not a mode of this service")
    decoding = decoding_of(pb.decoding)
    return GenerationOrder(
        prefix=_piece(pb.prefix, "prefix") if pb.HasField("prefix") else None,
        chunks=_chunks(pb.chunks),
        questions=tuple(_piece(q, f"questions[{i}]") for i, q in enumerate(pb.questions)),
        reuse=_REUSE[pb.reuse],
        max_tokens=pb.sampling.max_tokens or None,
        sampling=_sampling(pb.sampling),
        beams=_beams(decoding),
        choose=_choice(decoding),
    )


def _beams(decoding: Decoding) -> Beams | None:
    if decoding.beams is None:
        return None
    return Beams(decoding.beams.width, decoding.beams.length_penalty, EarlyStopping(decoding.beams.early_stopping))


def _choice(decoding: Decoding) -> Choice | None:
    if decoding.choose is None:
        return None
    return Choice(ChoiceRule(decoding.choose.rule), decoding.choose.marker)


def _sampling(pb: common_pb2.Sampling) -> SamplingParams:
    return SamplingParams(
        temperature=pb.temperature,
        top_k=pb.top_k,
        top_p=1.0 if pb.top_p == 0 else pb.top_p,
        seed=pb.seed,
        n=pb.n or 1,
        stop=tuple(pb.stop),
        ignore_eos=pb.ignore_eos,
        top_logprobs=pb.top_logprobs,
    )


def _margins(margins: Margins) -> MarginsOrder:
    return MarginsOrder(
        margins.instruction or INSTRUCTION,
        margins.relevance or RELEVANCE,
        margins.yes or YES,
        margins.no or NO,
        margins.max_tokens or MAX_TOKENS,
    )


def _chunks(pbs: Iterable[generation_pb2.ChunkInput]) -> tuple[Piece, ...]:
    return tuple(_piece(c.piece, f"chunks[{i}].piece") for i, c in enumerate(pbs))


def _piece(pb: generation_pb2.Piece, field: str) -> Piece:
    match pb.WhichOneof("content"):
        case "text":
            return TextPiece(pb.text)
        case "token_ids":
            return IdsPiece(tuple(pb.token_ids.ids))
        case _:
            raise InvalidRequest(f"{field}: neither text nor token_ids is set")


def _response(event: Event | MarginTokenEvent | MarginEvent, request: GenerateRequest) -> generation_pb2.GenerateResponse:
    match event:
        case TokenEvent():
            token = generation_pb2.GeneratedToken(
                question=event.question,
                sample=event.sample,
                token_id=event.token_id,
                text=event.text,
                logprob=event.logprob,
                top_logprobs=[common_pb2.TokenLogprob(token_id=i, logprob=p) for i, p in event.top_logprobs],
            )
            return generation_pb2.GenerateResponse(token=token)
        case BranchDoneEvent():
            end = generation_pb2.BranchDone(
                question=event.question,
                sample=event.sample,
                finish_reason=_FINISH[event.finish_reason],
                text=event.text,
                generated_tokens=event.generated_tokens,
                score=event.score,
            )
            return generation_pb2.GenerateResponse(branch_done=end)
        case ChosenEvent():
            chosen = common_pb2.Chosen(question=event.question, sample=event.sample, answer=event.answer, votes=event.votes)
            return generation_pb2.GenerateResponse(chosen=chosen)
        case MarginTokenEvent():
            written = common_pb2.MarginToken(chunk=event.chunk, token_id=event.token_id, text=event.text)
            return generation_pb2.GenerateResponse(margin_token=written)
        case MarginEvent():
            margin = common_pb2.Margin(
                chunk=event.chunk,
                text=event.text,
                kept=event.kept,
                yes_logprob=event.yes_logprob,
                no_logprob=event.no_logprob,
            )
            return generation_pb2.GenerateResponse(margin=margin)
        case DoneEvent():
            done = generation_pb2.GenerateDone(
                usage=_usage(event), timings=_timings(event.timings), chunk_ids=[c.chunk_id for c in request.chunks]
            )
            return generation_pb2.GenerateResponse(done=done)
        case ChunkStoredEvent() | FailedEvent():
            raise AssertionError(f"{type(event).__name__} is no event of a generation")


def _usage(event: DoneEvent) -> common_pb2.Usage:
    usage = event.usage
    return common_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        reused_tokens=usage.reused_tokens,
        recomputed_tokens=usage.recomputed_tokens,
        generated_tokens=usage.generated_tokens,
    )


def _timings(timings: Timings) -> common_pb2.Timings:
    return common_pb2.Timings(
        queue_ms=timings.queue_s * 1000,
        load_ms=timings.load_s * 1000,
        prefill_ms=timings.prefill_s * 1000,
        first_token_ms=timings.first_token_s * 1000,
        decode_ms=timings.decode_s * 1000,
        total_ms=timings.total_s * 1000,
        engine_ttft_ms=timings.engine_ttft_s * 1000,
    )
