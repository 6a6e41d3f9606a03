"""What is told of a generation, as messages. Seconds here are milliseconds there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from protos.kvquilt.v1 import common_pb2, generation_pb2, recompute_pb2
from shared.generation.described import ModelDescription, PrefilledChunk
from shared.generation.told import (
    BranchDoneEvent,
    ChosenEvent,
    DoneEvent,
    Event,
    FinishReason,
    GenerationEvent,
    MarginEvent,
    MarginTokenEvent,
    SelectedEvent,
    TextSpan,
    Timings,
    TokenEvent,
    Usage,
)
from shared.wire.enums import FINISH_REASONS, READINGS, USED_MODES
from shared.wire.selection import timings_of as selection_timings_of
from shared.wire.selection import timings_to_pb as selection_timings_to_pb


def response_to_pb(event: GenerationEvent | Event) -> generation_pb2.GenerateResponse:
    match event:
        case TokenEvent():
            return generation_pb2.GenerateResponse(token=token_to_pb(event))
        case BranchDoneEvent():
            values = dataclasses.asdict(event) | {"finish_reason": finish_to_pb(event.finish_reason)}
            return generation_pb2.GenerateResponse(branch_done=generation_pb2.BranchDone(**values))
        case ChosenEvent():
            return generation_pb2.GenerateResponse(chosen=chosen_to_pb(event))
        case MarginTokenEvent():
            return generation_pb2.GenerateResponse(margin_token=margin_token_to_pb(event))
        case MarginEvent():
            return generation_pb2.GenerateResponse(margin=margin_to_pb(event))
        case SelectedEvent():
            return generation_pb2.GenerateResponse(selected=selected_to_pb(event))
        case DoneEvent():
            return generation_pb2.GenerateResponse(done=done_to_pb(event))
        case _:
            raise AssertionError(f"{type(event).__name__} is no event of a generation")


def response_of(pb: generation_pb2.GenerateResponse) -> GenerationEvent:
    match pb.WhichOneof("event"):
        case "token":
            return token_of(pb.token)
        case "branch_done":
            end = pb.branch_done
            reason = finish_of(end.finish_reason)
            return BranchDoneEvent(
                end.question, end.sample, reason, end.text, end.generated_tokens, end.score
            )
        case "chosen":
            return chosen_of(pb.chosen)
        case "margin_token":
            return margin_token_of(pb.margin_token)
        case "margin":
            return margin_of(pb.margin)
        case "selected":
            return selected_of(pb.selected)
        case _:
            return done_of(pb.done)


def finish_to_pb(reason: FinishReason) -> str:
    return FINISH_REASONS.to_pb(None if reason is FinishReason.UNKNOWN else reason)


def finish_of(number: int) -> FinishReason:
    return FINISH_REASONS.known(number) or FinishReason.UNKNOWN


def logprobs_to_pb(top: Iterable[tuple[int, float]]) -> list[common_pb2.TokenLogprob]:
    return [common_pb2.TokenLogprob(token_id=token_id, logprob=logprob) for token_id, logprob in top]


def logprobs_of(pbs: Iterable[common_pb2.TokenLogprob]) -> tuple[tuple[int, float], ...]:
    return tuple((pb.token_id, pb.logprob) for pb in pbs)


def token_to_pb(token: TokenEvent) -> generation_pb2.GeneratedToken:
    return generation_pb2.GeneratedToken(
        question=token.question,
        sample=token.sample,
        token_id=token.token_id,
        text=token.text,
        logprob=token.logprob,
        top_logprobs=logprobs_to_pb(token.top_logprobs),
    )


def token_of(pb: generation_pb2.GeneratedToken) -> TokenEvent:
    top = logprobs_of(pb.top_logprobs)
    return TokenEvent(pb.question, pb.sample, pb.token_id, pb.text, pb.logprob, top)


def chosen_to_pb(chosen: ChosenEvent) -> common_pb2.Chosen:
    return common_pb2.Chosen(**dataclasses.asdict(chosen))


def chosen_of(pb: common_pb2.Chosen) -> ChosenEvent:
    return ChosenEvent(pb.question, pb.sample, pb.answer, pb.votes)


def margin_token_to_pb(token: MarginTokenEvent) -> common_pb2.MarginToken:
    return common_pb2.MarginToken(**dataclasses.asdict(token))


def margin_token_of(pb: common_pb2.MarginToken) -> MarginTokenEvent:
    return MarginTokenEvent(pb.chunk, pb.token_id, pb.text)


def margin_to_pb(margin: MarginEvent) -> common_pb2.Margin:
    return common_pb2.Margin(**dataclasses.asdict(margin))


def margin_of(pb: common_pb2.Margin) -> MarginEvent:
    return MarginEvent(pb.chunk, pb.text, pb.kept, pb.yes_logprob, pb.no_logprob)


def selected_to_pb(selected: SelectedEvent) -> recompute_pb2.Selected:
    return recompute_pb2.Selected(
        question=selected.question,
        tokens=selected.tokens,
        layers=selected.layers,
        scores=selected.scores,
        chunks=[
            recompute_pb2.ChunkSpans(
                spans=[recompute_pb2.TextSpan(start=s.start, end=s.end, score=s.score) for s in spans]
            )
            for spans in selected.chunks
        ],
        reading=READINGS.to_pb(selected.reading),
        num_picked=selected.num_picked,
        num_grouped=selected.num_grouped,
        timings=None if selected.timings is None else selection_timings_to_pb(selected.timings),
    )


def selected_of(pb: recompute_pb2.Selected) -> SelectedEvent:
    return SelectedEvent(
        tokens=tuple(pb.tokens),
        question=pb.question if pb.HasField("question") else None,
        layers=tuple(pb.layers),
        scores=tuple(pb.scores),
        chunks=tuple(tuple(TextSpan(s.start, s.end, s.score) for s in chunk.spans) for chunk in pb.chunks),
        reading=READINGS.known(pb.reading),
        num_picked=pb.num_picked,
        num_grouped=pb.num_grouped,
        timings=selection_timings_of(pb.timings) if pb.HasField("timings") else None,
    )


def done_to_pb(done: DoneEvent) -> generation_pb2.GenerateDone:
    return generation_pb2.GenerateDone(
        usage=usage_to_pb(done.usage), timings=timings_to_pb(done.timings), chunk_ids=done.chunk_ids
    )


def done_of(pb: generation_pb2.GenerateDone) -> DoneEvent:
    return DoneEvent(usage_of(pb.usage), timings_of(pb.timings), tuple(pb.chunk_ids))


def usage_to_pb(usage: Usage) -> common_pb2.Usage:
    return common_pb2.Usage(**dataclasses.asdict(usage) | {"reuse": USED_MODES.to_pb(usage.reuse)})


def usage_of(pb: common_pb2.Usage) -> Usage:
    values = {field.name: getattr(pb, field.name) for field in dataclasses.fields(Usage)}
    return Usage(**values | {"reuse": USED_MODES.known(pb.reuse)})


def timings_to_pb(timings: Timings) -> common_pb2.Timings:
    return common_pb2.Timings(
        **{f"{name.removesuffix('_s')}_ms": s * 1000 for name, s in dataclasses.asdict(timings).items()}
    )


def timings_of(pb: common_pb2.Timings) -> Timings:
    names = [field.name for field in dataclasses.fields(Timings)]
    return Timings(**{name: getattr(pb, f"{name.removesuffix('_s')}_ms") / 1000 for name in names})


def prefilled_to_pb(chunk: PrefilledChunk) -> generation_pb2.PrefillResponse:
    return generation_pb2.PrefillResponse(**dataclasses.asdict(chunk) | {"num_tokens": len(chunk.token_ids)})


def prefilled_of(pb: generation_pb2.PrefillResponse) -> PrefilledChunk:
    return PrefilledChunk(pb.index, pb.chunk_id, tuple(pb.token_ids), pb.existed)


def model_to_pb(model: ModelDescription) -> generation_pb2.DescribeModelResponse:
    return generation_pb2.DescribeModelResponse(**dataclasses.asdict(model))


def model_of(pb: generation_pb2.DescribeModelResponse) -> ModelDescription:
    values = {field.name: getattr(pb, field.name) for field in dataclasses.fields(ModelDescription)}
    return ModelDescription(**values | {"prefix_ids": tuple(pb.prefix_ids), "eos_ids": tuple(pb.eos_ids)})
