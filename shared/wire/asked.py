"""What is asked of a generation, as messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from protos.kvquilt.v1 import common_pb2, generation_pb2, recompute_pb2
from shared.errors import InvalidRequest
from shared.generation.asked import Beams, Choice, Decoding, EarlyStopping, Margins, SamplingParams
from shared.generation.modes import Ape, Recompute
from shared.generation.orders import ForestOrder, GenerationOrder, Reuse
from shared.generation.pieces import Piece, Tokenized, ids_of, text_of
from shared.wire.enums import GROUPINGS, MARGINS_AFTER, MODES, READINGS, RULES, STOPPINGS


def piece_to_pb(piece: Piece) -> generation_pb2.Piece:
    if isinstance(piece, str):
        return generation_pb2.Piece(text=piece)
    return generation_pb2.Piece(token_ids=generation_pb2.TokenIds(ids=ids_of(piece), text=text_of(piece)))


def piece_of(pb: generation_pb2.Piece, field: str) -> Piece:
    match pb.WhichOneof("content"):
        case "text":
            return pb.text
        case "token_ids":
            ids = tuple(pb.token_ids.ids)
            return Tokenized(ids, pb.token_ids.text) if pb.token_ids.text else ids
        case _:
            raise InvalidRequest(f"{field}: neither text nor token_ids is set")


def pieces_of(pbs: Iterable[generation_pb2.Piece], field: str) -> tuple[Piece, ...]:
    return tuple(piece_of(pb, f"{field}[{i}]") for i, pb in enumerate(pbs))


def prefix_to_pb(prefix: Piece | None) -> generation_pb2.Piece | None:
    return None if prefix is None else piece_to_pb(prefix)


def prefix_of(
    pb: generation_pb2.PrefillRequest | generation_pb2.GenerateRequest | generation_pb2.ForestOpen,
) -> Piece | None:
    return piece_of(pb.prefix, "prefix") if pb.HasField("prefix") else None


def sampling_to_pb(sampling: SamplingParams) -> common_pb2.Sampling:
    return common_pb2.Sampling(
        max_tokens=sampling.max_tokens or 0,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed,
        n=sampling.n,
        stop=sampling.stop,
        ignore_eos=sampling.ignore_eos,
        top_logprobs=sampling.top_logprobs,
    )


def sampling_of(pb: common_pb2.Sampling) -> SamplingParams:
    return SamplingParams(
        max_tokens=pb.max_tokens or None,
        temperature=pb.temperature,
        top_k=pb.top_k,
        top_p=1.0 if pb.top_p == 0 else pb.top_p,
        seed=pb.seed,
        n=pb.n or 1,
        stop=tuple(pb.stop),
        ignore_eos=pb.ignore_eos,
        top_logprobs=pb.top_logprobs,
    )


def decoding_to_pb(decoding: Decoding) -> common_pb2.Decoding:
    pb = common_pb2.Decoding()
    if beams := decoding.beams:
        stopping = {"early_stopping": STOPPINGS.to_pb(beams.early_stopping)}
        pb.beams.CopyFrom(common_pb2.Beams(**dataclasses.asdict(beams) | stopping))
    if choose := decoding.choose:
        pb.choose.CopyFrom(common_pb2.Choice(rule=RULES.to_pb(choose.rule), marker=choose.marker))
    if margins := decoding.margins:
        after = {"after": MARGINS_AFTER.to_pb(margins.after)}
        pb.margins.CopyFrom(common_pb2.Margins(**dataclasses.asdict(margins) | after))
    return pb


def decoding_of(pb: common_pb2.Decoding) -> Decoding:
    return Decoding(
        beams=_beams_of(pb.beams) if pb.HasField("beams") else None,
        choose=_choice_of(pb.choose) if pb.HasField("choose") else None,
        margins=_margins_of(pb.margins) if pb.HasField("margins") else None,
    )


def _beams_of(pb: common_pb2.Beams) -> Beams:
    stopping = STOPPINGS.of(pb.early_stopping, "decoding.beams.early_stopping")
    penalty = pb.length_penalty if pb.HasField("length_penalty") else Beams(1).length_penalty
    return Beams(pb.width, penalty, stopping or EarlyStopping.ESTIMATE)


def _choice_of(pb: common_pb2.Choice) -> Choice:
    rule = RULES.of(pb.rule, "decoding.choose.rule")
    if rule is None:
        raise InvalidRequest("decoding.choose.rule: is not set; use MEAN_LOGPROB or MAJORITY")
    return Choice(rule, pb.marker)


def _margins_of(pb: common_pb2.Margins) -> Margins:
    """Empty and 0: the usual."""
    usual = Margins()
    return Margins(
        pb.instruction or usual.instruction,
        pb.relevance or usual.relevance,
        pb.yes or usual.yes,
        pb.no or usual.no,
        pb.max_tokens or usual.max_tokens,
        MARGINS_AFTER.of(pb.after, "decoding.margins.after") or usual.after,
    )


def recompute_to_pb(reuse: Reuse) -> recompute_pb2.Recompute:
    """
    Raises:
        InvalidRequest: a token that no message can carry.
    """
    recompute = reuse.recompute
    for token in recompute.tokens:
        if not 0 <= token < 2**32:
            raise InvalidRequest(
                f"recompute.tokens: {token} is out of range; tokens of the context are counted from 0"
            )
    return recompute_pb2.Recompute(
        ratio=recompute.ratio,
        tokens=recompute.tokens,
        seed=recompute.seed,
        grouping=GROUPINGS.to_pb(reuse.grouping),
        reading=READINGS.to_pb(reuse.reading),
    )


def ape_to_pb(ape: Ape) -> recompute_pb2.Ape:
    return recompute_pb2.Ape(temperature=ape.temperature, scale=ape.scale)


def reuse_of(mode: str, recompute: recompute_pb2.Recompute, ape: recompute_pb2.Ape) -> Reuse:
    """Of a request's three fields, as they go there by ``MODES``, ``recompute_to_pb`` and ``ape_to_pb``."""
    usual = Ape()
    return Reuse(
        MODES.of(mode, "reuse"),
        Recompute(
            recompute.ratio if recompute.HasField("ratio") else None, tuple(recompute.tokens), recompute.seed
        ),
        Ape(
            ape.temperature if ape.HasField("temperature") else usual.temperature,
            ape.scale if ape.HasField("scale") else usual.scale,
        ),
        GROUPINGS.of(recompute.grouping, "recompute.grouping"),
        READINGS.of(recompute.reading, "recompute.reading"),
    )


def order_to_pb(order: GenerationOrder, meta: common_pb2.RequestMeta) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(
        meta=meta,
        prefix=prefix_to_pb(order.prefix),
        chunks=map(piece_to_pb, order.chunks),
        questions=map(piece_to_pb, order.questions),
        reuse=MODES.to_pb(order.reuse.mode),
        sampling=sampling_to_pb(order.sampling),
        decoding=decoding_to_pb(order.decoding),
        recompute=recompute_to_pb(order.reuse),
        ape=ape_to_pb(order.reuse.ape),
        explain=order.explain,
    )


def order_of(pb: generation_pb2.GenerateRequest) -> GenerationOrder:
    return GenerationOrder(
        chunks=pieces_of(pb.chunks, "chunks"),
        questions=pieces_of(pb.questions, "questions"),
        prefix=prefix_of(pb),
        reuse=reuse_of(pb.reuse, pb.recompute, pb.ape),
        sampling=sampling_of(pb.sampling),
        decoding=decoding_of(pb.decoding),
        explain=pb.explain,
    )


def forest_to_pb(order: ForestOrder, meta: common_pb2.RequestMeta) -> generation_pb2.ForestOpen:
    return generation_pb2.ForestOpen(
        meta=meta,
        prefix=prefix_to_pb(order.prefix),
        chunks=map(piece_to_pb, order.chunks),
        reuse=MODES.to_pb(order.reuse.mode),
        recompute=recompute_to_pb(order.reuse),
        ape=ape_to_pb(order.reuse.ape),
    )


def forest_of(pb: generation_pb2.ForestOpen) -> ForestOrder:
    return ForestOrder(
        pieces_of(pb.chunks, "chunks"), prefix_of(pb), reuse_of(pb.reuse, pb.recompute, pb.ape)
    )
