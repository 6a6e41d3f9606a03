"""What a live forest is told to do, and what becomes of it, as messages."""

from __future__ import annotations

import dataclasses

from protos.kvquilt.v1 import generation_pb2 as pb
from shared.errors import InvalidRequest
from shared.generation.forest import Append, Edit, Fork, Grow, Merge, Prune, Rewind, Start
from shared.generation.told import (
    AppliedEvent,
    DoneEvent,
    Event,
    ExploringEvent,
    GrownEvent,
    RefusedEvent,
    RestedEvent,
    SelectedEvent,
)
from shared.status import from_code
from shared.wire.asked import piece_of, piece_to_pb, sampling_of, sampling_to_pb
from shared.wire.told import (
    done_of,
    done_to_pb,
    finish_of,
    finish_to_pb,
    logprobs_of,
    logprobs_to_pb,
    selected_of,
    selected_to_pb,
)


def command_to_pb(command: Edit) -> pb.ExploreRequest:
    match command:
        case Start(branch, piece):
            return pb.ExploreRequest(start=pb.ForestStart(branch=branch, piece=piece_to_pb(piece)))
        case Fork():
            return pb.ExploreRequest(fork=pb.ForestFork(**dataclasses.asdict(command)))
        case Rewind():
            return pb.ExploreRequest(rewind=pb.ForestRewind(**dataclasses.asdict(command)))
        case Prune():
            return pb.ExploreRequest(prune=pb.ForestPrune(branch=command.branch))
        case Append(branch, piece):
            return pb.ExploreRequest(append=pb.ForestAppend(branch=branch, piece=piece_to_pb(piece)))
        case Grow(branch, sampling):
            return pb.ExploreRequest(grow=pb.ForestGrow(branch=branch, sampling=sampling_to_pb(sampling)))
        case Merge():
            return pb.ExploreRequest(merge=pb.ForestMerge(**dataclasses.asdict(command)))


def command_of(message: pb.ExploreRequest) -> Edit:
    """
    Raises:
        InvalidRequest: it is none.
    """
    match message.WhichOneof("command"):
        case "start":
            return Start(message.start.branch, piece_of(message.start.piece, "start.piece"))
        case "fork":
            fork = message.fork
            return Fork(fork.branch, fork.source, fork.length if fork.HasField("length") else None)
        case "rewind":
            return Rewind(message.rewind.branch, message.rewind.num_tokens)
        case "prune":
            return Prune(message.prune.branch)
        case "append":
            return Append(message.append.branch, piece_of(message.append.piece, "append.piece"))
        case "grow":
            return Grow(message.grow.branch, sampling_of(message.grow.sampling))
        case "merge":
            merge = message.merge
            length = merge.length if merge.HasField("length") else None
            return Merge(merge.branch, tuple(merge.sources), length, merge.placed)
        case "open":
            raise InvalidRequest("open: the forest is open already; it is the first message only")
        case _:
            raise InvalidRequest("command: a message without a command")


def explored_to_pb(event: Event) -> pb.ExploreResponse:
    match event:
        case AppliedEvent():
            return pb.ExploreResponse(applied=pb.ForestApplied(**dataclasses.asdict(event)))
        case RefusedEvent(command, error):
            refused = pb.ForestRefused(command=command, code=error.code, detail=error.detail)
            return pb.ExploreResponse(refused=refused)
        case GrownEvent():
            values = dataclasses.asdict(event) | {"top_logprobs": logprobs_to_pb(event.top_logprobs)}
            return pb.ExploreResponse(grown=pb.ForestGrown(**values))
        case RestedEvent():
            values = dataclasses.asdict(event) | {"finish_reason": finish_to_pb(event.finish_reason)}
            return pb.ExploreResponse(rested=pb.ForestRested(**values))
        case SelectedEvent():
            return pb.ExploreResponse(selected=selected_to_pb(event))
        case DoneEvent():
            return pb.ExploreResponse(done=done_to_pb(event))
        case _:
            raise AssertionError(f"{type(event).__name__} is no event of a live forest")


def explored_of(message: pb.ExploreResponse) -> ExploringEvent:
    match message.WhichOneof("event"):
        case "applied":
            applied = message.applied
            return AppliedEvent(applied.command, applied.num_tokens, applied.approximate)
        case "refused":
            refused = message.refused
            return RefusedEvent(refused.command, from_code(refused.code, refused.detail))
        case "grown":
            grown = message.grown
            top = logprobs_of(grown.top_logprobs)
            return GrownEvent(grown.branch, grown.token_id, grown.text, grown.logprob, top)
        case "rested":
            rested = message.rested
            reason = finish_of(rested.finish_reason)
            return RestedEvent(rested.branch, reason, rested.text, rested.num_tokens)
        case "selected":
            return selected_of(message.selected)
        case _:
            return done_of(message.done)
