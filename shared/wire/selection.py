"""What a selector is asked and tells, as messages. Seconds here are milliseconds there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from protos.kvquilt.v1 import common_pb2
from protos.kvquilt.v1 import selection_pb2 as pb
from shared.generation.selection import (
    AuxiliaryDescription,
    EncodedChunk,
    Grouping,
    Reading,
    SelectedTokens,
    SelectionChunk,
    SelectionOrder,
    SelectionTimings,
)
from shared.wire.enums import GROUPINGS, READINGS


def chunk_to_pb(chunk: SelectionChunk) -> pb.SelectionChunk:
    return pb.SelectionChunk(text=chunk.text, token_ids=chunk.token_ids)


def chunk_of(message: pb.SelectionChunk) -> SelectionChunk:
    return SelectionChunk(message.text, tuple(message.token_ids))


def order_to_pb(order: SelectionOrder, meta: common_pb2.RequestMeta) -> pb.SelectRequest:
    return pb.SelectRequest(
        meta=meta,
        chunks=map(chunk_to_pb, order.chunks),
        questions=order.questions,
        ratio=order.ratio,
        grouping=GROUPINGS.to_pb(order.grouping),
        reading=READINGS.to_pb(order.reading),
    )


def order_of(message: pb.SelectRequest) -> SelectionOrder:
    return SelectionOrder(
        tuple(map(chunk_of, message.chunks)),
        tuple(message.questions),
        message.ratio,
        GROUPINGS.known(message.grouping) or Grouping.BUDGET,
        READINGS.known(message.reading) or Reading.STITCHED,
    )


def selected_to_pb(selected: Sequence[SelectedTokens]) -> pb.SelectResponse:
    return pb.SelectResponse(
        questions=[
            pb.SelectedTokens(
                tokens=one.tokens,
                scores=one.scores,
                reading=READINGS.to_pb(one.reading),
                num_picked=one.num_picked,
                num_grouped=one.num_grouped,
            )
            for one in selected
        ],
        timings=timings_to_pb(selected[0].timings) if selected else None,
    )


def selected_of(message: pb.SelectResponse) -> tuple[SelectedTokens, ...]:
    timings = timings_of(message.timings)
    return tuple(
        SelectedTokens(
            tokens=tuple(one.tokens),
            scores=tuple(one.scores),
            reading=READINGS.known(one.reading),
            num_picked=one.num_picked,
            num_grouped=one.num_grouped,
            timings=timings,
        )
        for one in message.questions
    )


def timings_to_pb(timings: SelectionTimings) -> pb.SelectionTimings:
    return pb.SelectionTimings(
        load_ms=timings.load_s * 1000,
        encode_ms=timings.encode_s * 1000,
        score_ms=timings.score_s * 1000,
        total_ms=timings.total_s * 1000,
    )


def timings_of(message: pb.SelectionTimings) -> SelectionTimings:
    return SelectionTimings(
        message.load_ms / 1000, message.encode_ms / 1000, message.score_ms / 1000, message.total_ms / 1000
    )


def encoded_to_pb(chunk: EncodedChunk) -> pb.EncodeResponse:
    return pb.EncodeResponse(**dataclasses.asdict(chunk))


def encoded_of(message: pb.EncodeResponse) -> EncodedChunk:
    return EncodedChunk(message.index, message.auxiliary_id, message.num_tokens, message.existed)


def description_to_pb(described: AuxiliaryDescription) -> pb.DescribeAuxiliaryResponse:
    return pb.DescribeAuxiliaryResponse(**dataclasses.asdict(described))


def description_of(message: pb.DescribeAuxiliaryResponse) -> AuxiliaryDescription:
    values = {field.name: getattr(message, field.name) for field in dataclasses.fields(AuxiliaryDescription)}
    return AuxiliaryDescription(**values | {"prefix_ids": tuple(message.prefix_ids)})
