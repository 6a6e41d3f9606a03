"""Translates what a selector is asked and tells."""

from __future__ import annotations

from collections.abc import Sequence

from protos.kvquilt.v1 import selection_pb2 as pb
from shared.generation.selection import (
    AuxiliaryDescription,
    EncodedChunk,
    SelectedTokens,
    SelectionChunk,
    SelectionOrder,
    SelectionTimings,
)
from shared.wire.enums import GROUPINGS, READINGS
from shared.wire.message import MessageWire

CHUNK = MessageWire(SelectionChunk, pb.SelectionChunk)
ORDER = MessageWire(SelectionOrder, pb.SelectRequest, grouping=GROUPINGS, reading=READINGS)
ENCODED = MessageWire(EncodedChunk, pb.EncodeResponse)
DESCRIPTION = MessageWire(AuxiliaryDescription, pb.DescribeAuxiliaryResponse)
_TOKENS = MessageWire(SelectedTokens, pb.SelectedTokens, reading=READINGS)
_TIMINGS = MessageWire(SelectionTimings, pb.SelectionTimings)


def selected_to_pb(selected: Sequence[SelectedTokens]) -> pb.SelectResponse:
    return pb.SelectResponse(
        questions=map(_TOKENS.to_pb, selected),
        timings=_TIMINGS.to_pb(selected[0].timings) if selected else None,
    )


def selected_of(message: pb.SelectResponse) -> tuple[SelectedTokens, ...]:
    timings = _TIMINGS.of(message.timings)
    return tuple(SelectedTokens(timings=timings, **_TOKENS.values_of(one)) for one in message.questions)
