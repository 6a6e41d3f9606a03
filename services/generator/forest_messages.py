"""Messages of ``Explore`` to commands, and what happens in a live forest back to messages."""

from __future__ import annotations

from protos.kvquilt.v1 import common_pb2, generation_pb2
from services.generator.messages import FINISH, done_to_pb, piece_of, sampling_of
from services.generator.prompts import Prompts
from shared.engine.types import (
    Append,
    AppliedEvent,
    Chunk,
    Command,
    DoneEvent,
    Event,
    Fork,
    Grow,
    GrownEvent,
    Merge,
    Prune,
    RefusedEvent,
    RestedEvent,
    Rewind,
    Start,
)
from shared.errors import InvalidRequest


def command_of(pb: generation_pb2.ExploreRequest, prompts: Prompts, max_tokens: int) -> Command:
    """``max_tokens``: of a branch that is told to grow without saying how far.

    Raises:
        InvalidRequest: it cannot be read.
    """
    match pb.WhichOneof("command"):
        case "start":
            return Start(pb.start.branch, prompts.question("start.piece", piece_of(pb.start.piece, "start.piece")))
        case "fork":
            return Fork(pb.fork.branch, pb.fork.source, pb.fork.length if pb.fork.HasField("length") else None)
        case "rewind":
            return Rewind(pb.rewind.branch, pb.rewind.num_tokens)
        case "prune":
            return Prune(pb.prune.branch)
        case "append":
            return Append(pb.append.branch, prompts.plain("append.piece", piece_of(pb.append.piece, "append.piece")))
        case "grow":
            return Grow(pb.grow.branch, sampling_of(pb.grow.sampling, pb.grow.sampling.max_tokens or max_tokens))
        case "merge":
            return Merge(pb.merge.branch, tuple(pb.merge.sources), pb.merge.length, pb.merge.placed)
        case "open":
            raise InvalidRequest("open: the forest is open already; it is the first message only")
        case _:
            raise InvalidRequest("command: a message without a command")


def response_of(event: Event, chunks: tuple[Chunk, ...]) -> generation_pb2.ExploreResponse:
    match event:
        case AppliedEvent():
            applied = generation_pb2.ForestApplied(
                command=event.command, num_tokens=event.num_tokens, approximate=event.approximate
            )
            return generation_pb2.ExploreResponse(applied=applied)
        case RefusedEvent():
            refused = generation_pb2.ForestRefused(command=event.command, code=event.error.code, detail=event.error.detail)
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
        case DoneEvent():
            return generation_pb2.ExploreResponse(done=done_to_pb(event, chunks))
        case _:
            raise AssertionError(f"{type(event).__name__} is no event of a live forest")
