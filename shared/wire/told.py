"""Translates what is told of a generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protos.kvquilt.v1 import common_pb2, generation_pb2, recompute_pb2
from shared.generation.described import ModelDescription, PrefilledChunk, RecomputedChunk
from shared.generation.told import (
    BranchDoneEvent,
    ChosenEvent,
    DoneEvent,
    GenerationEvent,
    MarginEvent,
    MarginTokenEvent,
    SelectedEvent,
    TextSpan,
    TokenEvent,
    Usage,
)
from shared.wire.enums import FINISH_REASONS, READINGS, USED_MODES
from shared.wire.message import Conversion, MessageWire, OneOfWire, TupleWire

_SPAN = MessageWire(TextSpan, recompute_pb2.TextSpan)


def _spans_to_pb(spans: Sequence[TextSpan]) -> recompute_pb2.ChunkSpans:
    return recompute_pb2.ChunkSpans(spans=map(_SPAN.to_pb, spans))


def _spans_of(pb: recompute_pb2.ChunkSpans) -> tuple[TextSpan, ...]:
    return tuple(map(_SPAN.of, pb.spans))


class _Prefilled(MessageWire[PrefilledChunk, generation_pb2.PrefillResponse]):
    def fields_of(self, value: PrefilledChunk) -> dict[str, Any]:
        return super().fields_of(value) | {"num_tokens": len(value.token_ids)}


LOGPROB = TupleWire(common_pb2.TokenLogprob, "token_id", "logprob")
USAGE = MessageWire(Usage, common_pb2.Usage, reuse=USED_MODES)
DONE = MessageWire(DoneEvent, generation_pb2.GenerateDone, usage=USAGE)
SELECTED = MessageWire(
    SelectedEvent, recompute_pb2.Selected, chunks=Conversion(_spans_to_pb, _spans_of), reading=READINGS
)
EVENTS: dict[str, MessageWire[Any, Any]] = {
    "token": MessageWire(TokenEvent, generation_pb2.GeneratedToken, top_logprobs=LOGPROB),
    "chosen": MessageWire(ChosenEvent, common_pb2.Chosen),
    "margin_token": MessageWire(MarginTokenEvent, common_pb2.MarginToken),
    "margin": MessageWire(MarginEvent, common_pb2.Margin),
    "selected": SELECTED,
}
"""What the generator and the gateway tell alike."""
GENERATED: OneOfWire[GenerationEvent, generation_pb2.GenerateResponse] = OneOfWire(
    generation_pb2.GenerateResponse,
    **EVENTS,
    branch_done=MessageWire(BranchDoneEvent, generation_pb2.BranchDone, finish_reason=FINISH_REASONS),
    done=DONE,
)
PREFILLED = _Prefilled(PrefilledChunk, generation_pb2.PrefillResponse)
RECOMPUTED = MessageWire(RecomputedChunk, generation_pb2.RecomputeResponse)
MODEL = MessageWire(ModelDescription, generation_pb2.DescribeModelResponse)
