"""Translates what a live forest is told to do, and what becomes of it."""

from __future__ import annotations

from functools import partial
from typing import Any

from google.protobuf.message import Message

from protos.kvquilt.v1 import generation_pb2 as pb
from shared.errors import InvalidRequest
from shared.generation.forest import Append, Edit, Fork, Grow, Merge, Prune, Rewind, Start
from shared.generation.told import AppliedEvent, ExploringEvent, GrownEvent, RefusedEvent, RestedEvent
from shared.status import from_code
from shared.wire.asked import piece_of, piece_to_pb
from shared.wire.enums import FINISH_REASONS
from shared.wire.message import Conversion, MessageWire, OneOfWire
from shared.wire.told import DONE, LOGPROB, SELECTED


class _Refusal(MessageWire[RefusedEvent, pb.ForestRefused]):
    """An error is its code and its words."""

    def fields_of(self, value: RefusedEvent) -> dict[str, Any]:
        return super().fields_of(value) | {"code": value.error.code, "detail": value.error.detail}

    def values_of(self, message: Message) -> dict[str, Any]:
        assert isinstance(message, pb.ForestRefused)
        return super().values_of(message) | {"error": from_code(message.code, message.detail)}


COMMANDS: OneOfWire[Edit, pb.ExploreRequest] = OneOfWire(
    pb.ExploreRequest,
    start=MessageWire(
        Start, pb.ForestStart, piece=Conversion(piece_to_pb, partial(piece_of, field="start.piece"))
    ),
    fork=MessageWire(Fork, pb.ForestFork),
    rewind=MessageWire(Rewind, pb.ForestRewind),
    prune=MessageWire(Prune, pb.ForestPrune),
    append=MessageWire(
        Append, pb.ForestAppend, piece=Conversion(piece_to_pb, partial(piece_of, field="append.piece"))
    ),
    grow=MessageWire(Grow, pb.ForestGrow),
    merge=MessageWire(Merge, pb.ForestMerge),
)
EXPLORED: OneOfWire[ExploringEvent, pb.ExploreResponse] = OneOfWire(
    pb.ExploreResponse,
    applied=MessageWire(AppliedEvent, pb.ForestApplied),
    refused=_Refusal(RefusedEvent, pb.ForestRefused),
    grown=MessageWire(GrownEvent, pb.ForestGrown, top_logprobs=LOGPROB),
    rested=MessageWire(RestedEvent, pb.ForestRested, finish_reason=FINISH_REASONS),
    selected=SELECTED,
    done=DONE,
)


def command_of(message: pb.ExploreRequest) -> Edit:
    """
    Raises:
        InvalidRequest: it is none.
    """
    match message.WhichOneof("command"):
        case "open":
            raise InvalidRequest("open: the forest is open already; it is the first message only")
        case None:
            raise InvalidRequest("command: a message without a command")
    return COMMANDS.of(message)
