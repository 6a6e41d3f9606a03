"""Translates what is asked of a generation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Any

from protos.kvquilt.v1 import common_pb2, generation_pb2, rag_pb2, recompute_pb2
from shared.errors import InvalidRequest
from shared.generation.asked import Beams, Choice, ChoiceRule, Decoding, Margins, SamplingParams
from shared.generation.modes import Ape, Recompute
from shared.generation.orders import ForestOrder, GenerationOrder, Reuse
from shared.generation.pieces import Conditioned, Piece, PlainPiece, Tokenized, ids_of, text_of
from shared.wire.enums import GROUPINGS, KV_CONTEXTS, MARGINS_AFTER, MODES, READINGS, RULES, STOPPINGS
from shared.wire.message import Conversion, MessageWire


def piece_to_pb(piece: Piece) -> generation_pb2.Piece:
    if isinstance(piece, Conditioned):
        pb = piece_to_pb(piece.piece)
        pb.context.extend(map(piece_to_pb, piece.context))
        pb.parent_id = piece.parent_id
        return pb
    if isinstance(piece, str):
        return generation_pb2.Piece(text=piece)
    return generation_pb2.Piece(token_ids=generation_pb2.TokenIds(ids=ids_of(piece), text=text_of(piece)))


def piece_of(pb: generation_pb2.Piece, field: str) -> PlainPiece:
    """
    Raises:
        InvalidRequest: it is nothing, or has a context, which only chunks have.
    """
    if pb.context or pb.parent_id:
        raise InvalidRequest(f"{field}: has a context, or a parent_id, which only chunks have")
    match pb.WhichOneof("content"):
        case "text":
            return pb.text
        case "token_ids":
            ids = tuple(pb.token_ids.ids)
            return Tokenized(ids, pb.token_ids.text) if pb.token_ids.text else ids
        case _:
            raise InvalidRequest(f"{field}: neither text nor token_ids is set")


def pieces_of(pbs: Iterable[generation_pb2.Piece], field: str) -> tuple[PlainPiece, ...]:
    return tuple(piece_of(pb, f"{field}[{i}]") for i, pb in enumerate(pbs))


def chunks_of(pbs: Iterable[generation_pb2.Piece]) -> tuple[Piece, ...]:
    """Pieces that may have a context."""
    return tuple(_chunk_of(pb, f"chunks[{i}]") for i, pb in enumerate(pbs))


def _chunk_of(pb: generation_pb2.Piece, field: str) -> Piece:
    context, parent_id = pieces_of(pb.context, f"{field}.context"), pb.parent_id
    if not context and not parent_id:
        return piece_of(pb, field)
    if parent_id and not _IDENTITY.fullmatch(parent_id):
        raise InvalidRequest(f"{field}.parent_id: {parent_id[:50]!r} is no identity; it has 40 hex digits")
    if context and parent_id:
        raise InvalidRequest(f"{field}.parent_id: follows from the context; give one of them")
    plain = generation_pb2.Piece()
    plain.CopyFrom(pb)
    plain.ClearField("context")
    plain.ClearField("parent_id")
    return Conditioned(piece_of(plain, field), context, parent_id)


def prefix_to_pb(prefix: Piece | None) -> generation_pb2.Piece | None:
    return None if prefix is None else piece_to_pb(prefix)


def prefix_of(
    pb: generation_pb2.PrefillRequest
    | generation_pb2.RecomputeRequest
    | generation_pb2.GenerateRequest
    | generation_pb2.ForestOpen,
) -> Piece | None:
    return piece_of(pb.prefix, "prefix") if pb.HasField("prefix") else None


def _rule_of(number: int) -> ChoiceRule:
    rule = RULES.of(number, "decoding.choose.rule")
    if rule is None:
        raise InvalidRequest("decoding.choose.rule: is not set; use MEAN_LOGPROB or MAJORITY")
    return rule


_STOPPING = Conversion(STOPPINGS.to_pb, partial(STOPPINGS.of, field="decoding.beams.early_stopping"))
_AFTER = Conversion(MARGINS_AFTER.to_pb, partial(MARGINS_AFTER.of, field="decoding.margins.after"))
SAMPLING = MessageWire(SamplingParams, common_pb2.Sampling)
DECODING = MessageWire(
    Decoding,
    common_pb2.Decoding,
    beams=MessageWire(Beams, common_pb2.Beams, early_stopping=_STOPPING),
    choose=MessageWire(Choice, common_pb2.Choice, rule=Conversion(RULES.to_pb, _rule_of)),
    margins=MessageWire(Margins, common_pb2.Margins, after=_AFTER),
)
_RECOMPUTE = MessageWire(Recompute, recompute_pb2.Recompute)
_APE = MessageWire(Ape, recompute_pb2.Ape)
_IDENTITY = re.compile(r"[0-9a-f]{40}")


def reuse_to_pb(reuse: Reuse) -> dict[str, Any]:
    """A request's four fields.

    Raises:
        InvalidRequest: a token that no message can carry.
    """
    for token in reuse.recompute.tokens:
        if not 0 <= token < 2**32:
            raise InvalidRequest(
                f"recompute.tokens: {token} is out of range; tokens of the context are counted from 0"
            )
    recompute = recompute_pb2.Recompute(
        grouping=GROUPINGS.to_pb(reuse.grouping),
        reading=READINGS.to_pb(reuse.reading),
        **_RECOMPUTE.fields_of(reuse.recompute),
    )
    return {
        "reuse": MODES.to_pb(reuse.mode),
        "recompute": recompute,
        "ape": _APE.to_pb(reuse.ape),
        "adapter": reuse.adapter,
    }


def reuse_of(pb: generation_pb2.GenerateRequest | generation_pb2.ForestOpen | rag_pb2.AnswerRequest) -> Reuse:
    return Reuse(
        MODES.of(pb.reuse, "reuse"),
        _RECOMPUTE.of(pb.recompute),
        _APE.of(pb.ape),
        GROUPINGS.of(pb.recompute.grouping, "recompute.grouping"),
        READINGS.of(pb.recompute.reading, "recompute.reading"),
        pb.adapter,
    )


def order_to_pb(order: GenerationOrder) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(
        prefix=prefix_to_pb(order.prefix),
        chunks=map(piece_to_pb, order.chunks),
        questions=map(piece_to_pb, order.questions),
        sampling=SAMPLING.to_pb(order.sampling),
        decoding=DECODING.to_pb(order.decoding),
        explain=order.explain,
        idle=order.idle,
        conversation=order.conversation,
        chunk_ids=order.chunk_ids,
        route=order.route,
        route_held=order.route_held,
        kv_context=KV_CONTEXTS.to_pb(order.kv_context),
        **reuse_to_pb(order.reuse),
    )


def order_of(pb: generation_pb2.GenerateRequest) -> GenerationOrder:
    return GenerationOrder(
        chunks=chunks_of(pb.chunks),
        questions=pieces_of(pb.questions, "questions"),
        prefix=prefix_of(pb),
        reuse=reuse_of(pb),
        kv_context=KV_CONTEXTS.of(pb.kv_context, "kv_context"),
        sampling=SAMPLING.of(pb.sampling),
        decoding=DECODING.of(pb.decoding),
        explain=pb.explain,
        idle=pb.idle,
        conversation=pb.conversation,
        chunk_ids=tuple(pb.chunk_ids),
        route=pb.route,
        route_held=pb.route_held,
    )


def forest_to_pb(order: ForestOrder) -> generation_pb2.ForestOpen:
    return generation_pb2.ForestOpen(
        prefix=prefix_to_pb(order.prefix),
        chunks=map(piece_to_pb, order.chunks),
        kv_context=KV_CONTEXTS.to_pb(order.kv_context),
        **reuse_to_pb(order.reuse),
    )


def forest_of(pb: generation_pb2.ForestOpen) -> ForestOrder:
    kv_context = KV_CONTEXTS.of(pb.kv_context, "kv_context")
    return ForestOrder(chunks_of(pb.chunks), prefix_of(pb), reuse_of(pb), kv_context)
