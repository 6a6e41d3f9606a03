"""Questions to the gateway and their answers, as messages."""

from __future__ import annotations

import dataclasses

from protos.kvquilt.v1 import common_pb2, rag_pb2
from shared.answer import (
    AnswerDone,
    AnswerEvent,
    AnswerText,
    AnswerUsage,
    Citation,
    Inquiry,
    RetrievalOptions,
    Retrieved,
)
from shared.generation.told import ChosenEvent, MarginEvent, MarginTokenEvent, SelectedEvent, TokenEvent
from shared.wire.asked import (
    ape_to_pb,
    decoding_of,
    decoding_to_pb,
    recompute_to_pb,
    reuse_of,
    sampling_of,
    sampling_to_pb,
)
from shared.wire.enums import MODES
from shared.wire.retrieval import filter_of, filter_to_pb, hit_of, hit_to_pb, mode_of, mode_to_pb
from shared.wire.told import (
    chosen_of,
    chosen_to_pb,
    finish_of,
    finish_to_pb,
    margin_of,
    margin_to_pb,
    margin_token_of,
    margin_token_to_pb,
    selected_of,
    selected_to_pb,
    timings_of,
    timings_to_pb,
    token_of,
    token_to_pb,
    usage_of,
    usage_to_pb,
)


def inquiry_to_pb(inquiry: Inquiry, meta: common_pb2.RequestMeta) -> rag_pb2.AnswerRequest:
    options = inquiry.retrieval
    return rag_pb2.AnswerRequest(
        meta=meta,
        collection=inquiry.collection,
        questions=inquiry.questions,
        reuse=MODES.to_pb(inquiry.reuse.mode),
        sampling=sampling_to_pb(inquiry.sampling),
        retrieval=rag_pb2.RetrievalOptions(
            k=options.k, mode=mode_to_pb(options.mode), filters=map(filter_to_pb, options.filters)
        ),
        decoding=decoding_to_pb(inquiry.decoding),
        recompute=recompute_to_pb(inquiry.reuse),
        ape=ape_to_pb(inquiry.reuse.ape),
        without_prefix=inquiry.without_prefix,
        explain=inquiry.explain,
    )


def inquiry_of(pb: rag_pb2.AnswerRequest) -> Inquiry:
    options = pb.retrieval
    return Inquiry(
        collection=pb.collection,
        questions=tuple(pb.questions),
        reuse=reuse_of(pb.reuse, pb.recompute, pb.ape),
        sampling=sampling_of(pb.sampling),
        retrieval=RetrievalOptions(options.k, mode_of(options.mode), tuple(map(filter_of, options.filters))),
        decoding=decoding_of(pb.decoding),
        without_prefix=pb.without_prefix,
        explain=pb.explain,
    )


def answer_to_pb(event: AnswerEvent) -> rag_pb2.AnswerEvent:
    match event:
        case Retrieved(hits, mode):
            return rag_pb2.AnswerEvent(
                retrieved=rag_pb2.Retrieved(hits=map(hit_to_pb, hits), mode=mode_to_pb(mode))
            )
        case TokenEvent():
            return rag_pb2.AnswerEvent(token=token_to_pb(event))
        case AnswerText():
            return rag_pb2.AnswerEvent(answer=_text_to_pb(event))
        case SelectedEvent():
            return rag_pb2.AnswerEvent(selected=selected_to_pb(event))
        case ChosenEvent():
            return rag_pb2.AnswerEvent(chosen=chosen_to_pb(event))
        case MarginTokenEvent():
            return rag_pb2.AnswerEvent(margin_token=margin_token_to_pb(event))
        case MarginEvent():
            return rag_pb2.AnswerEvent(margin=margin_to_pb(event))
        case AnswerUsage(usage, timings):
            return rag_pb2.AnswerEvent(
                usage=rag_pb2.AnswerUsage(usage=usage_to_pb(usage), timings=timings_to_pb(timings))
            )
        case AnswerDone(request_id):
            return rag_pb2.AnswerEvent(done=rag_pb2.AnswerDone(request_id=request_id))


def answer_of(pb: rag_pb2.AnswerEvent) -> AnswerEvent:
    match pb.WhichOneof("event"):
        case "retrieved":
            return Retrieved(tuple(map(hit_of, pb.retrieved.hits)), mode_of(pb.retrieved.mode))
        case "token":
            return token_of(pb.token)
        case "answer":
            return _text_of(pb.answer)
        case "selected":
            return selected_of(pb.selected)
        case "chosen":
            return chosen_of(pb.chosen)
        case "margin_token":
            return margin_token_of(pb.margin_token)
        case "margin":
            return margin_of(pb.margin)
        case "usage":
            return AnswerUsage(usage_of(pb.usage.usage), timings_of(pb.usage.timings))
        case _:
            return AnswerDone(pb.done.request_id)


def _text_to_pb(text: AnswerText) -> rag_pb2.AnswerText:
    values = dataclasses.asdict(text) | {"finish_reason": finish_to_pb(text.finish_reason)}
    return rag_pb2.AnswerText(**values)


def _text_of(pb: rag_pb2.AnswerText) -> AnswerText:
    citations = tuple(Citation(c.document_id, c.title, c.chunk_id, c.hit, c.heading) for c in pb.citations)
    return AnswerText(pb.question, pb.sample, pb.text, finish_of(pb.finish_reason), citations, pb.score)
