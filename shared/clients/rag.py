"""Client of the gateway: answers and the state of the system, and the translation between its values and its
messages."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from protos.kvquilt.v1 import common_pb2, rag_pb2
from shared.answer import (
    AnswerDone,
    AnswerEvent,
    AnswerText,
    AnswerUsage,
    Citation,
    RetrievalOptions,
    Retrieved,
)
from shared.clients.decoding import (
    Chosen,
    Decoding,
    Margin,
    MarginToken,
    chosen_of,
    chosen_to_pb,
    decoding_to_pb,
    margin_of,
    margin_to_pb,
    margin_token_of,
    margin_token_to_pb,
)
from shared.clients.generation import (
    FinishReason,
    GeneratedToken,
    Reuse,
    Sampling,
    reuse_to_pb,
    sampling_to_pb,
    timings_of,
    usage_of,
    usage_to_pb,
)
from shared.clients.health import ServiceHealth, health, health_from_pb, meta_of
from shared.clients.recompute import (
    Ape,
    Recompute,
    Selected,
    ape_to_pb,
    recompute_to_pb,
    selected_of,
    selected_to_pb,
)
from shared.clients.retrieval import filter_of, filter_to_pb, hit_of, hit_to_pb, mode_of, mode_to_pb
from shared.clients.transport import Transport
from shared.errors import Unavailable
from shared.request import RequestContext

SERVICE = "kvquilt.v1.Rag"
ADMIN_SERVICE = "kvquilt.v1.Admin"
APPLICATION = "gateway"
_FINISH_TO_PB: dict[FinishReason, common_pb2.FinishReason] = {
    "stop": common_pb2.FINISH_REASON_STOP,
    "length": common_pb2.FINISH_REASON_LENGTH,
}
_FINISH = {pb: reason for reason, pb in _FINISH_TO_PB.items()}


class RagClient:
    """Every method raises ``shared.errors``; closing a stream early stops the work behind it."""

    def __init__(self, rag: Transport, admin: Transport) -> None:
        self._rag = rag
        self._admin = admin

    def answer(
        self,
        ctx: RequestContext,
        collection: str,
        question: str,
        reuse: Reuse | None = None,
        sampling: Sampling | None = None,
        retrieval: RetrievalOptions | None = None,
        decoding: Decoding | None = None,
        recompute: Recompute | None = None,
        ape: Ape | None = None,
        without_prefix: bool = False,
        explain: bool = False,
    ) -> AsyncGenerator[AnswerEvent, None]:
        """What was retrieved, tokens as they come, whole texts, costs; the last event of a whole answer is
        ``AnswerDone``.
        ``explain``: ``Selected`` brings scores and spans.

        Raises:
            Unavailable: the stream ended without it.
        """
        request = rag_pb2.AnswerRequest(
            meta=meta_of(ctx),
            collection=collection,
            question=question,
            reuse=reuse_to_pb(reuse),
            sampling=sampling_to_pb(sampling or Sampling()),
            retrieval=_retrieval_to_pb(retrieval or RetrievalOptions()),
            decoding=decoding_to_pb(decoding or Decoding()),
            recompute=recompute_to_pb(recompute),
            ape=ape_to_pb(ape),
            without_prefix=without_prefix,
            explain=explain,
        )
        return _events(self._rag.stream("Answer", request, rag_pb2.AnswerEvent, ctx.remaining_s))

    def answer_many(
        self,
        ctx: RequestContext,
        collection: str,
        questions: Sequence[str],
        reuse: Reuse | None = None,
        sampling: Sampling | None = None,
        retrieval: RetrievalOptions | None = None,
        decoding: Decoding | None = None,
        recompute: Recompute | None = None,
        ape: Ape | None = None,
        without_prefix: bool = False,
        explain: bool = False,
    ) -> AsyncGenerator[AnswerEvent, None]:
        """Several questions over one context, decoded together; see ``answer``."""
        request = rag_pb2.AnswerManyRequest(
            meta=meta_of(ctx),
            collection=collection,
            questions=questions,
            reuse=reuse_to_pb(reuse),
            sampling=sampling_to_pb(sampling or Sampling()),
            retrieval=_retrieval_to_pb(retrieval or RetrievalOptions()),
            decoding=decoding_to_pb(decoding or Decoding()),
            recompute=recompute_to_pb(recompute),
            ape=ape_to_pb(ape),
            without_prefix=without_prefix,
            explain=explain,
        )
        return _events(self._rag.stream("AnswerMany", request, rag_pb2.AnswerEvent, ctx.remaining_s))

    async def status(self, ctx: RequestContext) -> list[ServiceHealth]:
        request = rag_pb2.StatusRequest(meta=meta_of(ctx))
        response = await self._admin.unary("Status", request, rag_pb2.StatusResponse, ctx.remaining_s)
        return [health_from_pb(service) for service in response.services]

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        return await health(self._rag, ctx)


async def _events(stream: AsyncGenerator[rag_pb2.AnswerEvent, None]) -> AsyncGenerator[AnswerEvent, None]:
    async with aclosing(stream):
        async for pb in stream:
            event = event_of(pb)
            yield event
            if isinstance(event, AnswerDone):
                return
    raise Unavailable("the answer broke off; what came is not the whole; retry")


def sampling_of(pb: common_pb2.Sampling) -> Sampling:
    """Ranges are the generator's to check."""
    return Sampling(
        max_tokens=pb.max_tokens,
        temperature=pb.temperature,
        top_k=pb.top_k,
        top_p=pb.top_p,
        seed=pb.seed,
        n=pb.n,
        stop=tuple(pb.stop),
        ignore_eos=pb.ignore_eos,
        top_logprobs=pb.top_logprobs,
    )


def retrieval_of(pb: rag_pb2.RetrievalOptions) -> RetrievalOptions:
    return RetrievalOptions(pb.k, mode_of(pb.mode), tuple(filter_of(f) for f in pb.filters))


def event_to_pb(event: AnswerEvent) -> rag_pb2.AnswerEvent:
    match event:
        case Retrieved():
            return rag_pb2.AnswerEvent(
                retrieved=rag_pb2.Retrieved(hits=map(hit_to_pb, event.hits), mode=mode_to_pb(event.mode))
            )
        case GeneratedToken():
            return rag_pb2.AnswerEvent(token=_token_to_pb(event))
        case AnswerText():
            return rag_pb2.AnswerEvent(answer=_text_to_pb(event))
        case Selected():
            return rag_pb2.AnswerEvent(selected=selected_to_pb(event))
        case Chosen():
            return rag_pb2.AnswerEvent(chosen=chosen_to_pb(event))
        case MarginToken():
            return rag_pb2.AnswerEvent(margin_token=margin_token_to_pb(event))
        case Margin():
            return rag_pb2.AnswerEvent(margin=margin_to_pb(event))
        case AnswerUsage():
            timings = common_pb2.Timings(**_fields(event.timings))
            return rag_pb2.AnswerEvent(
                usage=rag_pb2.AnswerUsage(usage=usage_to_pb(event.usage), timings=timings)
            )
        case AnswerDone():
            return rag_pb2.AnswerEvent(done=rag_pb2.AnswerDone(request_id=event.request_id))


def event_of(pb: rag_pb2.AnswerEvent) -> AnswerEvent:
    match pb.WhichOneof("event"):
        case "retrieved":
            return Retrieved(tuple(map(hit_of, pb.retrieved.hits)), mode_of(pb.retrieved.mode))
        case "token":
            return _token_of(pb.token)
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


def _retrieval_to_pb(options: RetrievalOptions) -> rag_pb2.RetrievalOptions:
    return rag_pb2.RetrievalOptions(
        k=options.k, mode=mode_to_pb(options.mode), filters=map(filter_to_pb, options.filters)
    )


def _token_to_pb(token: GeneratedToken) -> rag_pb2.AnswerToken:
    top = [
        common_pb2.TokenLogprob(token_id=token_id, logprob=logprob)
        for token_id, logprob in token.top_logprobs
    ]
    return rag_pb2.AnswerToken(**(_fields(token) | {"top_logprobs": top}))


def _token_of(pb: rag_pb2.AnswerToken) -> GeneratedToken:
    top = tuple((t.token_id, t.logprob) for t in pb.top_logprobs)
    return GeneratedToken(pb.question, pb.sample, pb.token_id, pb.text, pb.logprob, top)


def _text_to_pb(text: AnswerText) -> rag_pb2.AnswerText:
    return rag_pb2.AnswerText(
        question=text.question,
        sample=text.sample,
        text=text.text,
        finish_reason=_FINISH_TO_PB[text.finish_reason],
        citations=[rag_pb2.Citation(**_fields(c)) for c in text.citations],
        score=text.score,
    )


def _text_of(pb: rag_pb2.AnswerText) -> AnswerText:
    citations = tuple(Citation(c.document_id, c.title, c.chunk_id, c.hit, c.heading) for c in pb.citations)
    return AnswerText(pb.question, pb.sample, pb.text, _FINISH[pb.finish_reason], citations, pb.score)


def _fields(value: Any) -> dict[str, Any]:
    """A flat dataclass's fields: here their names are the message's."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
