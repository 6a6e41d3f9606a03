"""What ``handlers`` reads and writes: messages of ``Prefill``, ``Generate`` and ``Explore`` to domain values,
and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from protos.kvquilt.v1 import common_pb2, generation_pb2, recompute_pb2
from services.generator.config import GeneratorConfig
from services.generator.margins import (
    INSTRUCTION,
    MAX_TOKENS,
    NO,
    RELEVANCE,
    YES,
    MarginEvent,
    MarginsOrder,
    MarginTokenEvent,
)
from services.generator.prompts import IdsPiece, Piece, Prompts, TextPiece
from services.generator.reusing import ReuseOrder, mode_of
from services.generator.serving import GenerationOrder
from services.generator.telling import EndEvent, SelectionEvent, Told
from shared.clients.decoding import Decoding, decoding_of
from shared.clients.generation import reuse_of
from shared.clients.recompute import Ape as AskedApe
from shared.clients.recompute import Selected, ape_of, recompute_of, selected_to_pb
from shared.errors import InvalidRequest
from shared.generation.asked import Beams, Choice, ChoiceRule, EarlyStopping, SamplingParams
from shared.generation.forest import Append, Command, Fork, Grow, Merge, Prune, Rewind, Start
from shared.generation.modes import Ape, Recompute
from shared.generation.told import (
    AppliedEvent,
    BranchDoneEvent,
    ChosenEvent,
    FinishReason,
    GrownEvent,
    RefusedEvent,
    RestedEvent,
    TokenEvent,
)

FINISH = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
}


def order_of(pb: generation_pb2.GenerateRequest) -> GenerationOrder:
    decoding = decoding_of(pb.decoding)
    return GenerationOrder(
        prefix=piece_of(pb.prefix, "prefix") if pb.HasField("prefix") else None,
        chunks=chunks_of(pb.chunks),
        questions=tuple(piece_of(q, f"questions[{i}]") for i, q in enumerate(pb.questions)),
        reuse=reuse_order_of(pb),
        max_tokens=pb.sampling.max_tokens or None,
        sampling=sampling_of(pb.sampling),
        beams=_beams(decoding),
        choose=_choice(decoding),
        explain=pb.explain,
    )


def _beams(decoding: Decoding) -> Beams | None:
    if decoding.beams is None:
        return None
    return Beams(
        decoding.beams.width, decoding.beams.length_penalty, EarlyStopping(decoding.beams.early_stopping)
    )


def _choice(decoding: Decoding) -> Choice | None:
    if decoding.choose is None:
        return None
    return Choice(ChoiceRule(decoding.choose.rule), decoding.choose.marker)


def reuse_order_of(pb: generation_pb2.GenerateRequest | generation_pb2.ForestOpen) -> ReuseOrder:
    name, recompute = reuse_of(pb.reuse), recompute_of(pb.recompute)
    return ReuseOrder(
        mode=None if name is None else mode_of(name),
        recompute=Recompute(recompute.ratio, recompute.tokens, recompute.seed),
        ape=_ape(ape_of(pb.ape)),
        grouping=recompute.grouping,
        reading=recompute.reading,
    )


def _ape(asked: AskedApe) -> Ape:
    usual = Ape()
    return Ape(
        usual.temperature if asked.temperature is None else asked.temperature,
        usual.scale if asked.scale is None else asked.scale,
    )


def sampling_of(pb: common_pb2.Sampling, max_tokens: int = 1) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=pb.temperature,
        top_k=pb.top_k,
        top_p=1.0 if pb.top_p == 0 else pb.top_p,
        seed=pb.seed,
        n=pb.n or 1,
        stop=tuple(pb.stop),
        ignore_eos=pb.ignore_eos,
        top_logprobs=pb.top_logprobs,
    )


def margins_of(pb: common_pb2.Decoding) -> MarginsOrder | None:
    margins = decoding_of(pb).margins
    if margins is None:
        return None
    return MarginsOrder(
        margins.instruction or INSTRUCTION,
        margins.relevance or RELEVANCE,
        margins.yes or YES,
        margins.no or NO,
        margins.max_tokens or MAX_TOKENS,
    )


def chunks_of(pbs: Iterable[generation_pb2.ChunkInput]) -> tuple[Piece, ...]:
    return tuple(_chunk_of(c, f"chunks[{i}].piece") for i, c in enumerate(pbs))


def _chunk_of(pb: generation_pb2.ChunkInput, field: str) -> Piece:
    piece = piece_of(pb.piece, field)
    return IdsPiece(piece.token_ids, pb.text) if isinstance(piece, IdsPiece) else piece


def piece_of(pb: generation_pb2.Piece, field: str) -> Piece:
    match pb.WhichOneof("content"):
        case "text":
            return TextPiece(pb.text)
        case "token_ids":
            return IdsPiece(tuple(pb.token_ids.ids))
        case _:
            raise InvalidRequest(f"{field}: neither text nor token_ids is set")


def response_of(event: Told | MarginTokenEvent | MarginEvent) -> generation_pb2.GenerateResponse:
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
                finish_reason=FINISH[event.finish_reason],
                text=event.text,
                generated_tokens=event.generated_tokens,
                score=event.score,
            )
            return generation_pb2.GenerateResponse(branch_done=end)
        case ChosenEvent():
            chosen = common_pb2.Chosen(
                question=event.question, sample=event.sample, answer=event.answer, votes=event.votes
            )
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
        case SelectionEvent():
            return generation_pb2.GenerateResponse(selected=_selected(event))
        case EndEvent():
            return generation_pb2.GenerateResponse(done=_done(event))
        case _:
            raise AssertionError(f"{type(event).__name__} is no event of a generation")


def _selected(event: SelectionEvent) -> recompute_pb2.Selected:
    selected, answer = event.selected, event.answer
    told = Selected(selected.tokens, selected.question, selected.layers, selected.scores, event.chunks)
    if answer is not None:
        told = replace(
            told,
            reading=answer.reading,
            num_picked=answer.num_picked,
            num_grouped=answer.num_grouped,
            timings=answer.timings,
        )
    return selected_to_pb(told)


def _done(event: EndEvent) -> generation_pb2.GenerateDone:
    return generation_pb2.GenerateDone(
        usage=_usage(event), timings=_timings(event), chunk_ids=event.chunk_ids
    )


def _usage(event: EndEvent) -> common_pb2.Usage:
    usage, answer = event.done.usage, event.answer
    return common_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        reused_tokens=usage.reused_tokens,
        recomputed_tokens=usage.recomputed_tokens,
        generated_tokens=usage.generated_tokens,
        loaded_tokens=usage.loaded_tokens,
        selected_tokens=usage.selected_tokens,
        picked_tokens=answer.num_picked if answer is not None else 0,
        grouped_tokens=answer.num_grouped if answer is not None else 0,
        reuse=f"REUSE_MODE_{event.mode.name}",
        note=event.note,
    )


def _timings(event: EndEvent) -> common_pb2.Timings:
    timings = event.done.timings
    return common_pb2.Timings(
        queue_ms=timings.queue_s * 1000,
        load_ms=timings.load_s * 1000,
        prefill_ms=timings.prefill_s * 1000,
        first_token_ms=timings.first_token_s * 1000,
        decode_ms=timings.decode_s * 1000,
        total_ms=timings.total_s * 1000,
        engine_ttft_ms=timings.engine_ttft_s * 1000,
        select_ms=event.select_s * 1000,
        select_wait_ms=timings.select_wait_s * 1000,
    )


def command_of(pb: generation_pb2.ExploreRequest, prompts: Prompts, config: GeneratorConfig) -> Command:
    """
    Raises:
        InvalidRequest: it cannot be read.
    """
    match pb.WhichOneof("command"):
        case "start":
            return Start(
                pb.start.branch, prompts.question("start.piece", piece_of(pb.start.piece, "start.piece"))
            )
        case "fork":
            return Fork(
                pb.fork.branch, pb.fork.source, pb.fork.length if pb.fork.HasField("length") else None
            )
        case "rewind":
            return Rewind(pb.rewind.branch, pb.rewind.num_tokens)
        case "prune":
            return Prune(pb.prune.branch)
        case "append":
            return Append(
                pb.append.branch, prompts.plain("append.piece", piece_of(pb.append.piece, "append.piece"))
            )
        case "grow":
            max_tokens = pb.grow.sampling.max_tokens or config.max_tokens
            if max_tokens > config.max_tokens_limit:
                raise InvalidRequest(
                    f"grow.sampling.max_tokens: {max_tokens} is more than the "
                    f"{config.max_tokens_limit} allowed"
                )
            return Grow(pb.grow.branch, sampling_of(pb.grow.sampling, max_tokens))
        case "merge":
            length = pb.merge.length if pb.merge.HasField("length") else None
            return Merge(pb.merge.branch, tuple(pb.merge.sources), length, pb.merge.placed)
        case "open":
            raise InvalidRequest("open: the forest is open already; it is the first message only")
        case _:
            raise InvalidRequest("command: a message without a command")


def explored_to_pb(event: Told) -> generation_pb2.ExploreResponse:
    match event:
        case AppliedEvent():
            applied = generation_pb2.ForestApplied(
                command=event.command, num_tokens=event.num_tokens, approximate=event.approximate
            )
            return generation_pb2.ExploreResponse(applied=applied)
        case RefusedEvent():
            refused = generation_pb2.ForestRefused(
                command=event.command, code=event.error.code, detail=event.error.detail
            )
            return generation_pb2.ExploreResponse(refused=refused)
        case GrownEvent():
            grown = generation_pb2.ForestGrown(
                branch=event.branch,
                token_id=event.token_id,
                text=event.text,
                logprob=event.logprob,
                top_logprobs=[common_pb2.TokenLogprob(token_id=i, logprob=p) for i, p in event.top_logprobs],
            )
            return generation_pb2.ExploreResponse(grown=grown)
        case RestedEvent():
            rested = generation_pb2.ForestRested(
                branch=event.branch,
                finish_reason=FINISH[event.finish_reason],
                text=event.text,
                num_tokens=event.num_tokens,
            )
            return generation_pb2.ExploreResponse(rested=rested)
        case SelectionEvent():
            return generation_pb2.ExploreResponse(selected=_selected(event))
        case EndEvent():
            return generation_pb2.ExploreResponse(done=_done(event))
        case _:
            raise AssertionError(f"{type(event).__name__} is no event of a live forest")
